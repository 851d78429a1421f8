"""Stamps messages with their time of sending, in apps whose ``lowkiq_message_score`` is "sent"."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery
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
    """The headers of a message that is sent now. One with a score needs no time; what is wrong is refused
    where the message arrives.
    """
    headers = headers or {}
    said = headers.get(HEADER) or {}
    if not isinstance(said, Mapping) or said.get("score") is not None or SENT in said:
        return headers
    return {**headers, HEADER: {**said, SENT: _times.next()}}


def _stamping(app: Celery, send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def send_stamped(producer: Any, name: str, message: Any, headers: Any = None, **options: Any) -> Any:
        if not isinstance(producer, StoreProducer) and _may_be_ordered(app, name):
            headers = stamped(headers)
        return send(producer, name, message, headers=headers, **options)

    return send_stamped


def _may_be_ordered(app: Any, name: str) -> bool:
    """Whether a task is ordered, or of another app."""
    task = app._tasks.get(name)
    return task is None or hasattr(type(task), "queue_spec")


def install() -> None:
    """Have each app of this process look at its setting when it sends its first message. The signals of a
    message do not say whose it is, and a receiver would have Celery make a message of each ordered call.
    """
    factory: Any = AMQP
    create = factory._create_task_sender

    @functools.wraps(create)
    def create_sender(self: Any) -> Callable[..., Any]:
        send: Callable[..., Any] = create(self)
        return _stamping(self.app, send) if read_setting(self.app, "message_score") == "sent" else send

    factory._create_task_sender = create_sender
