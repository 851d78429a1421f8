"""What Celery publishes an ordered call to, in place of the broker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from celery_lowkiq.integration.app.context import home_of
from celery_lowkiq.rules.errors import StoreFull, StoreUnavailable

#: ``store(body, headers, properties, pauses)`` stores what Celery made of a call.
StoresMessage = Callable[[Any, Any, Any, Iterable[float]], None]


class CallUnavailable(StoreUnavailable, OperationalError):
    """Redis cannot be reached: what any call of Celery's raises then."""


class CallRefused(StoreFull, OperationalError):
    """Redis is full: nothing was stored."""


@contextlib.contextmanager
def as_operational_errors() -> Iterator[None]:
    """Make of an absent store what callers of Celery catch."""
    try:
        yield
    except StoreFull as error:
        raise CallRefused(*error.args) from error
    except StoreUnavailable as error:
        raise CallUnavailable(*error.args) from error


def pauses_of(retry: Any, policy: Mapping[str, Any] | None) -> Iterator[float]:
    """Seconds before each repetition, by Celery's ``retry`` and ``retry_policy``."""
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
    pauses = fxrange(start, most + start, given["interval_step"], repeatlast=True)
    return islice(pauses, given["max_retries"])


class StoreRouter:
    """Ordered calls have one destination: ``task_routes`` do not apply, and no broker queue is made up."""

    def __init__(self, name: str) -> None:
        self._queue = Queue(name, routing_key=name)

    def route(self, options: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        """Options that name the ordered queue, for whoever reads the publish signals."""
        return {**options, "queue": self._queue}


class StoreProducer:
    """Stands in for kombu's producer in ``Task.apply_async``: publishing stores the call.

    Celery keeps doing what it does around a publish: signals, headers, the result.
    """

    auto_declare = False
    serializer = None

    def __init__(self, app: Celery, push: StoresMessage) -> None:
        self._app = app
        self._push = push
        #: Whether Celery has made the message, and what becomes of it is known.
        self.published = False
        self.connection = home_of(app).connection

    @property
    def channel(self) -> Any:
        """Of the broker: where a result backend that lives there declares its queue."""
        return self.connection.default_channel

    def publish(self, body: Any, exchange: Any = None, headers: Any = None, **properties: Any) -> None:
        """Store the call, repeatedly by its retry policy while Redis is away. Celery's own events go to the
        broker. Raises CallUnavailable.
        """
        if getattr(exchange, "name", exchange) == "celeryev":
            with self._app.producer_pool.acquire(block=True) as producer:
                producer.publish(body, exchange=exchange, headers=headers, **properties)
            return
        self.published = True
        pauses = pauses_of(properties.get("retry"), properties.get("retry_policy"))
        with as_operational_errors():
            self._push(body, headers, properties, pauses)

    def revive(self, channel: Any) -> None:
        """Nothing to renew."""

    def __enter__(self) -> StoreProducer:
        return self

    def __exit__(self, *error: object) -> None:
        return None
