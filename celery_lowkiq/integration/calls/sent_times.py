"""Stamps messages with their time of sending, in apps whose ``lowkiq_message_score`` is "sent"."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from celery.app.amqp import AMQP

from celery_lowkiq.integration.app.settings import read_setting
from celery_lowkiq.integration.records.call_record import HEADER
from celery_lowkiq.worker.forks import ProcessLock

from .message import SENT
from .producer import StoreProducer


class SendingTimes:
    """Unix times in s, each at least 1 us after the one before: calls of a process never have equal ones."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._lock = ProcessLock()
        self._last_us = 0

    def next(self) -> float:
        """The time of one message."""
        with self._lock:
            self._last_us = max(self._now_ns() // 1000, self._last_us + 1)
            return self._last_us / 1_000_000


_times = SendingTimes()


def stamped(headers: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The headers of a message that is sent now. One with a score needs no time.

    The receiver refuses an invalid header.
    """
    headers = headers or {}
    given = headers.get(HEADER) or {}
    if not isinstance(given, Mapping) or given.get("score") is not None or SENT in given:
        return headers
    return {**headers, HEADER: {**given, SENT: _times.next()}}


def _stamping(app: Any, send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def send_stamped(producer: Any, name: str, message: Any, headers: Any = None, **options: Any) -> Any:
        # A task that this app does not have may be ordered.
        task = app._tasks.get(name)
        may_be_ordered = task is None or hasattr(type(task), "queue_spec")
        if may_be_ordered and not isinstance(producer, StoreProducer):
            headers = stamped(headers)
        return send(producer, name, message, headers=headers, **options)

    return send_stamped


def install() -> None:
    """Have each app of this process read its setting when it sends its first message.

    A signal does not tell the app of a message, and its receiver would end the fast path of ordered calls.
    """
    factory: Any = AMQP
    create = factory._create_task_sender

    @functools.wraps(create)
    def create_sender(self: Any) -> Callable[..., Any]:
        send: Callable[..., Any] = create(self)
        return _stamping(self.app, send) if read_setting(self.app, "message_score") == "sent" else send

    factory._create_task_sender = create_sender
