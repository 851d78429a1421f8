"""Options of Celery's that an ordered task refuses: each with the reason, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.validators import invalid

FIXED = "the number of lanes is fixed when the worker starts. Use -c, or lowkiq_lanes"
ENDLESS = "A thread cannot be stopped from outside. Give run_in='process', or max_run= for an alarm"
THREADS = (
    "its lane runs it in a thread, which cannot be stopped. Use run_in='process', or max_run= for an alarm"
)
_MERGED = "calls of one id are merged into one job"
_STORED = "calls go to the store, not to a broker"
#: Refused at the decorator, and in a class.
REFUSED = {
    "compression": "payloads are stored as their serializer writes them. Send a reference to large data",
    "serializer": f"{_MERGED}, so all have one serializer. Set lowkiq_serializer",
    "exchange": f"{_STORED}. Use queue_name= to name the ordered queue",
    "routing_key": f"{_STORED}. Use queue_name= to name the ordered queue",
    "delivery_mode": f"{_STORED}. Set lowkiq_push_durability, which says what a call waits for",
    "mandatory": f"{_STORED}, which always takes them",
    "immediate": f"{_STORED}, which always takes them",
    "queue": "an ordered task has a queue of its own. Use queue_name= to name it",
    "default_retry_delay": "retry_in= is the delay before a retry. Use it, or self.retry(countdown=)",
    "pydantic": "the function gets payloads by id. Give by=, or validate each payload in the function",
    "Request": "runs come from a lane, not as messages. Use on_failure and the other methods, or signals",
}
#: Refused only of a function that gets payloads by id.
_OF_PLAIN_TASKS = ("pydantic", "default_retry_delay")
#: Tasks of Celery that call another task for each item.
_INLINE = {"celery.map": "map", "celery.starmap": "starmap"}


def check_celery_options(options: Mapping[str, Any], keeps_signature: bool = False) -> None:
    """Raises ConfigurationError for the first option of the decorator, or of a class, that is refused."""
    for name, reason in REFUSED.items():
        if options.get(name) not in (None, False) and not (keeps_signature and name in _OF_PLAIN_TASKS):
            raise ConfigurationError(invalid(name, options[name], f"no {name}=, since {reason}"))
    if options.get("retry_backoff") and not (options.get("autoretry_for") or keeps_signature):
        fix = "Give autoretry_for=, or compute the delay in retry_in="
        expected = "autoretry_for= beside it, without which it has no effect"
        raise ConfigurationError(invalid("retry_backoff", options["retry_backoff"], expected, fix))


def check_caller(task: str, caller: Any) -> None:
    """Raises InvalidCall when Celery's map or starmap calls a task directly."""
    way = _INLINE.get(getattr(caller, "name", ""))
    if way is not None:
        refuse_inline(task, way)


def refuse_inline(task: str, way: str) -> NoReturn:
    """Raises InvalidCall for map, starmap and chunks."""
    raise InvalidCall(
        f"{task}.{way} is not supported: Celery would run the items in one plain task, unordered. Use "
        "a group of signatures, or, without by=, perform_async([...], results=True)"
    )
