"""The worker's event loop while its lanes end: heartbeats and remote control go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: How often a drain looks for a second signal when the worker's event loop cannot run, in s.
DRAIN_LOOK = 0.2


def turns(consumer: Any) -> Callable[[], Any] | None:
    """One turn of the worker's event loop, without new tasks; None when there is no connection."""
    if consumer.connection is None:
        return None
    if consumer.task_consumer is not None:
        try:
            consumer.task_consumer.cancel()
        except Exception:  # noqa: BLE001 - a broken connection delivers nothing anyway
            return None
    _keep_beating(consumer)
    if consumer.hub is not None:
        loop = consumer.hub.create_loop()
        return lambda: next(loop)
    return lambda: _synchronous_turn(consumer)


def _keep_beating(consumer: Any) -> None:
    """Celery before 5.7 forgets all that is due when a worker begins to stop, and its heartbeat with it."""
    heart, timer = getattr(consumer, "heart", None), consumer.timer
    if heart is None or heart.tref is None:
        return
    if heart.tref not in [due.entry for due in timer.queue]:
        heart.tref = timer.call_repeatedly(heart.interval, heart._send, ("worker-heartbeat",))


def _synchronous_turn(consumer: Any) -> None:
    consumer.perform_pending_operations()
    try:
        consumer.connection.drain_events(timeout=DRAIN_LOOK)
    except TimeoutError:
        return
