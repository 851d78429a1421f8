"""Keeps tests from the Redis of the app's settings, perhaps a developer's own, unless they ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest
from celery import signals

from celery_lowkiq.integration.app import AppContext
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.testing.store import EmbeddedContext

#: Name of the fixture, and of the option in pytest's configuration, that ask for it.
ASKS = "lowkiq_redis"
#: Fixtures that bring a store or a worker; so do those of Celery's plugins, which begin with "celery_".
BRING = frozenset({"lowkiq", "lowkiq_server", ASKS})
REFUSED = (
    "an ordered task's call or queue in this test would use the Redis of the app's settings. Use the fixture "
    f"lowkiq. If the test is meant to, use the fixture {ASKS}, or set {ASKS} = true in pytest's configuration"
)

#: Workers in this process: a test that starts one asks for its Redis.
_workers: WeakSet[Any] = WeakSet()


def _note_start(sender: Any, **_: Any) -> None:
    _workers.add(sender)


def _note_end(sender: Any, **_: Any) -> None:
    _workers.discard(sender)


signals.worker_init.connect(_note_start)
signals.worker_shutdown.connect(_note_end)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addini(ASKS, "Let all tests use the Redis of the app's settings.", type="bool", default=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Refuse the stores of apps during a test, its fixtures included, unless it asks for them."""
    with pytest.MonkeyPatch.context() as patch:
        if not _asks(item):
            patch.setattr(AppContext, "store", property(_store))
        yield


def _asks(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    found = item.config.getini(ASKS) or any(name in BRING or name.startswith("celery_") for name in names)
    return bool(found)


_usual: Any = AppContext.store


def _store(context: AppContext) -> RedisStore:
    if not (_workers or isinstance(context, EmbeddedContext)):
        pytest.fail(REFUSED)
    store: RedisStore = vars(context).get("store") or _usual.__get__(context)
    return store
