"""An app with ordered tasks, and its dashboard in front of a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import redis
from celery import Celery
from starlette.testclient import TestClient

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.web import forms, make_app
from tests.worker import proj

#: As a browser on the same machine says it.
LOCAL: dict[str, Any] = {"base_url": "http://localhost:5556", "client": ("127.0.0.1", 50000)}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is no long one because the machine is busy."""
    monkeypatch.setattr(forms, "PATIENCE", 20.0)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that does not end is watched soon."""
    monkeypatch.setattr(forms, "PATIENCE", 0.2)


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
def shop(
    redis_server: EmbeddedServer, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """The examples' app on our Redis, as if each had a process of its own."""
    monkeypatch.setenv("CELERY_BROKER_URL", redis_server.url)
    monkeypatch.setenv("DASHBOARD_AUTH", "ops:secret")
    from examples.dashboard import shop

    shop.app.conf.broker_url = redis_server.url
    shop.app.__dict__.pop("_lowkiq_context", None)
    return shop


@pytest.fixture
def django_shop(
    shop: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModuleType]:
    """The same with the example's Django project, which this process makes once."""
    monkeypatch.setenv("DJANGO_DATABASE", str(tmp_path_factory.mktemp("django") / "db"))
    from django.test import override_settings

    from examples.dashboard import with_django  # noqa: F401

    # The usual hash of a password takes half a second.
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield shop


@pytest.fixture
def record(app: Celery) -> Any:
    return app.tasks["record"]


@pytest.fixture
def client(redis_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """Redis, to write what no call would."""
    with redis.Redis(unix_socket_path=redis_server.socket_path) as found:
        yield found
