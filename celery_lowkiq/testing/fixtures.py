"""Fixtures of pytest; the server starts when a test uses one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from celery import Celery, current_app

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.testing.store import Lowkiq, lowkiq_store


@pytest.fixture(scope="session")
def lowkiq_server() -> Iterator[EmbeddedServer]:
    """The private server of the test run; its ``url`` can also be broker and result backend."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def lowkiq_app() -> Celery:
    """The app under test: the current app. Override it to use another one."""
    proxy: Any = current_app
    return cast(Celery, proxy._get_current_object())


@pytest.fixture(scope="session")
def lowkiq_redis() -> None:
    """Ask for the Redis of the app's settings, which other tests must not use."""


@pytest.fixture
def lowkiq(lowkiq_app: Celery, lowkiq_server: EmbeddedServer) -> Iterator[Lowkiq]:
    """An empty store that the app's ordered tasks use during the test.

    Raises ConfigurationError with ``task_always_eager``, because calls are not stored then.
    """
    with lowkiq_store(lowkiq_app, lowkiq_server) as store:
        yield store
