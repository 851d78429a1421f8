"""Options of Celery's that have no meaning for an ordered task: refused by name, with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall

_THREADS = "a lane is a thread, which nothing can end from outside: max_run= raises an alarm"
_MERGED = "calls of one id are merged into one job"

#: Of a call, and of the decorator.
_BOTH = {
    "time_limit": _THREADS,
    "soft_time_limit": _THREADS,
    "priority": f"{_MERGED}, which runs by its time: give it a task of its own, or a smaller countdown",
    "compression": "payloads are stored as their serializer writes them: send a reference to large data",
    "serializer": f"{_MERGED}, so all have one serializer: set lowkiq_serializer",
    "exchange": "calls go to the store, not to a broker: queue_name= names the ordered queue",
    "routing_key": "calls go to the store, not to a broker: queue_name= names the ordered queue",
}
_DECORATOR = {
    **_BOTH,
    "queue": "an ordered task has a queue of its own, which queue_name= gives a name",
    "default_retry_delay": "the pause before a retry is retry_in=, or self.retry(countdown=)",
    "pydantic": "the function gets payloads by id: validate each payload inside it",
}


def check_celery_options(options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for the first option of the decorator, or of a class, that cannot be kept."""
    for name, reason in _DECORATOR.items():
        if options.get(name) not in (None, False):
            raise ConfigurationError(f"{name}={options[name]!r} is not allowed: {reason}")
    if options.get("retry_backoff") and not options.get("autoretry_for"):
        raise ConfigurationError(
            f"retry_backoff={options['retry_backoff']!r} is not allowed without autoretry_for=, since it has "
            "no effect then: give autoretry_for=, or compute the pause in retry_in="
        )


def check_call(task: str, queue: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidCall for the first option of a call that cannot be kept."""
    named = getattr(options.get("queue"), "name", options.get("queue"))
    if named is not None and named != queue:
        raise InvalidCall(
            f"queue={named!r}: calls of {task} go to {queue!r} only, since two queues "
            "cannot keep one id in order. Use another task, or queue_name= at the decorator"
        )
    for name, reason in _BOTH.items():
        if options.get(name) not in (None, queue):
            raise InvalidCall(f"{name}={options[name]!r} is not supported on {task}: {reason}")


def refuse_inline(task: str, way: str) -> NoReturn:
    """For map, starmap and chunks. Raises InvalidCall."""
    raise InvalidCall(
        f"{task}.{way} is not supported: Celery would run the items in one plain task, unordered. Use "
        "perform_async([...], results=True), or a group of signatures"
    )
