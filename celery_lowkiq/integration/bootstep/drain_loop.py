"""Runs the worker's event loop during a drain, so that heartbeats and remote control go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Seconds between checks for a second signal when the worker's event loop cannot run.
DRAIN_LOOK = 0.2


def turns(consumer: Any) -> Callable[[], Any] | None:
    """Return a function that runs one iteration without new tasks; None without a broker connection."""
    if consumer.connection is None:
        return None
    if consumer.task_consumer is not None:
        try:
            consumer.task_consumer.cancel()
        except Exception:  # noqa: BLE001 - a broken connection delivers no messages
            return None
    _restart_heartbeat(consumer)
    if consumer.hub is not None:
        loop = consumer.hub.create_loop()
        return lambda: next(loop)
    return lambda: _synchronous_iteration(consumer)


def _restart_heartbeat(consumer: Any) -> None:
    # Celery before 5.7 clears the timer, and the heartbeat in it, when a worker begins to stop.
    heart, timer = getattr(consumer, "heart", None), consumer.timer
    if heart is None or heart.tref is None:
        return
    if heart.tref not in [due.entry for due in timer.queue]:
        heart.tref = timer.call_repeatedly(heart.interval, heart._send, ("worker-heartbeat",))


def _synchronous_iteration(consumer: Any) -> None:
    consumer.perform_pending_operations()
    try:
        consumer.connection.drain_events(timeout=DRAIN_LOOK)
    except TimeoutError:
        return
