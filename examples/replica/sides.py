"""The two sides that are compared: a plain Celery task and an ordered one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .mirror import Mirror
from .stream import Event
from .tasks import app, mirror_ordered, mirror_plain


class Side(Protocol):
    """One of the two tasks, as the run uses it."""

    name: str
    title: str

    def send(self, event: Event) -> None:
        """Send one message."""

    def left(self, sent: int, mirror: Mirror) -> int:
        """The number of ``sent`` messages that are not done."""

    def clear(self, messages: Sequence[Event]) -> None:
        """Drop waiting messages."""


class PlainSide:
    """Each call runs."""

    name = "celery"
    title = "plain Celery"

    def send(self, event: Event) -> None:
        mirror_plain.delay(event.path, event.payload)

    def left(self, sent: int, mirror: Mirror) -> int:
        return sent - mirror.writes().total

    def clear(self, messages: Sequence[Event]) -> None:
        app.control.purge()


class OrderedSide:
    """The same calls; of those of a path that wait, only the newest runs."""

    name = "ordered"
    title = "ordered"

    def send(self, event: Event) -> None:
        mirror_ordered.delay(event.path, event.payload)

    def left(self, sent: int, mirror: Mirror) -> int:
        stats = mirror_ordered.ordered_queue.stats()
        return stats.length + stats.busy

    def clear(self, messages: Sequence[Event]) -> None:
        mirror_ordered.ordered_queue.delete(sorted({event.path for event in messages}))
