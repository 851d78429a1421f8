"""Replaces kombu's producer: Celery publishes an ordered call here, in place of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.errors import StoreFull, StoreUnavailable

from .message import MessagedCall, read_call


class CallUnavailable(StoreUnavailable, OperationalError):
    """Redis cannot be reached. Also the error that any call of Celery's raises then."""


class CallRefused(StoreFull, OperationalError):
    """Redis is full: nothing was stored."""


def as_celery_error(error: StoreFull | StoreUnavailable) -> CallRefused | CallUnavailable:
    """Return the error that a call raises in place of the store's."""
    return CallRefused(*error.args) if isinstance(error, StoreFull) else CallUnavailable(*error.args)


def retry_intervals(retry: Any, policy: Mapping[str, Any] | None) -> Iterator[float]:
    """Intervals in s before the retries of a publish, by Celery's ``retry`` and ``retry_policy``."""
    if not retry:
        return iter(())
    given = {
        "max_retries": 3,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 0.2,
        **(policy or {}),
    }
    start, most = given["interval_start"], given["interval_max"]
    intervals = fxrange(start, most + start, given["interval_step"], repeatlast=True)
    return islice(intervals, given["max_retries"])


def app_retry_intervals(app: Celery) -> Iterator[float]:
    """The retry intervals of a call without a policy of its own. Reads the settings at the first failure."""
    yield from retry_intervals(app.conf.task_publish_retry, app.conf.task_publish_retry_policy)


class StoreRouter:
    """Routes each call to its ordered queue: no ``task_routes``, and no broker queue is declared."""

    def __init__(self, name: str) -> None:
        self._queue = Queue(name, routing_key=name)

    def route(self, options: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        """The options with the ordered queue, for receivers of publish signals."""
        return {**options, "queue": self._queue}


class StoreProducer:
    """A producer for ``Task.apply_async`` whose ``publish`` stores the call.

    Celery does everything else around a publish: signals, headers, the result.
    """

    auto_declare = False
    serializer = None

    def __init__(self, app: Celery, store: Callable[[MessagedCall], None]) -> None:
        self._app = app
        self._store = store
        #: Whether Celery has published the message.
        self.published: bool = False
        self.connection: Any = context_of(app).connection

    @property
    def channel(self) -> Any:
        """The broker's channel, on which a result backend of the broker declares its queue."""
        return self.connection.default_channel

    def publish(self, body: Any, exchange: Any = None, headers: Any = None, **properties: Any) -> None:
        """Store the call. Celery's own events go to the broker."""
        if getattr(exchange, "name", exchange) == "celeryev":
            with self._app.producer_pool.acquire(block=True) as producer:
                producer.publish(body, exchange=exchange, headers=headers, **properties)
            return
        self.published = True
        self._store(read_call(body, headers, properties))

    def revive(self, channel: Any) -> None:
        """Do nothing: there is no channel to renew."""

    def __enter__(self) -> StoreProducer:
        return self

    def __exit__(self, *error: object) -> None:
        return None
