"""An app with ordered tasks, and its dashboard in front of a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from starlette.testclient import TestClient

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.web import changes, make_app
from tests.worker import proj

#: As a browser on the same machine says it.
LOCAL: dict[str, Any] = {"base_url": "http://localhost:5556", "client": ("127.0.0.1", 50000)}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is no long one because the machine is busy."""
    monkeypatch.setattr(changes, "PATIENCE", 20.0)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that does not end is watched soon."""
    monkeypatch.setattr(changes, "PATIENCE", 0.2)


@pytest.fixture
def app(settings: dict[str, Any]) -> Iterator[Celery]:
    made = proj.make_app(**settings)
    yield made
    context_of(made).store.close()
    made.close()


@pytest.fixture
def visit(app: Celery) -> Callable[..., TestClient]:
    """A browser in front of the dashboard with these options."""

    def open_browser(**options: Any) -> TestClient:
        return TestClient(make_app(app, **options), follow_redirects=False, **LOCAL)

    return open_browser


@pytest.fixture
def browser(visit: Callable[..., TestClient]) -> TestClient:
    return visit()


@pytest.fixture
def record(app: Celery) -> Any:
    return app.tasks["record"]


@pytest.fixture
def client(redis_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """Redis, to write what no call would."""
    with redis.Redis(unix_socket_path=redis_server.socket_path) as found:
        yield found
