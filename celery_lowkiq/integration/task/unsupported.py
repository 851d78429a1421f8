"""Options of Celery's that have no meaning for an ordered task: refused by name, with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from celery_lowkiq.integration.app.option_names import check_call_names
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall

FIXED = "the number of lanes is fixed when the worker starts: use -c, or lowkiq_lanes"
ENDLESS = "a lane is a thread, which nothing can end from outside: max_run= raises an alarm"
_MERGED = "calls of one id are merged into one job"
_STORED = "calls go to the store, not to a broker"
_SHOWN = (
    "events and listings show the payloads of a run, cut short: give a reference to what must stay hidden"
)

#: Of a call, and of the decorator.
_BOTH = {
    "time_limit": ENDLESS,
    "soft_time_limit": ENDLESS,
    "compression": "payloads are stored as their serializer writes them: send a reference to large data",
    "serializer": f"{_MERGED}, so all have one serializer: set lowkiq_serializer",
    "exchange": f"{_STORED}: queue_name= names the ordered queue",
    "routing_key": f"{_STORED}: queue_name= names the ordered queue",
    "delivery_mode": f"{_STORED}: lowkiq_push_durability says what a call waits for",
    "mandatory": f"{_STORED}, which always takes them",
    "immediate": f"{_STORED}, which always takes them",
}
_CALL = {
    **_BOTH,
    "connection": f"{_STORED}: lowkiq_url says where that is",
    "expiration": f"{_STORED}: expires= says until when a call may run",
    "retries": "the store counts them: max_retries= at the decorator, or self.retry(max_retries=)",
    "perform_in": "perform_async() takes it: write eta= for a time, or countdown= for seconds from now",
    "argsrepr": _SHOWN,
    "kwargsrepr": _SHOWN,
}
#: What Celery's own code gives with a call.
_NOTHING_ASKED = {"retries": 0}
_DECORATOR = {
    **_BOTH,
    "queue": "an ordered task has a queue of its own, which queue_name= gives a name",
    "default_retry_delay": "the pause before a retry is retry_in=, or self.retry(countdown=)",
    "pydantic": "the function gets payloads by id: validate each payload inside it",
    "Request": "runs come from a lane, not as messages: use on_failure and the other methods, or signals",
}


_BY_NAME = (
    "send_task() makes it a property of the message, which some brokers drop. Write "
    "headers={{'lowkiq': {{'{name}': ...}}}}"
)
#: What may be said of a retry: the lane puts the payloads back as they are, in the same queue.
_RETRY = ("exc", "countdown", "eta", "max_retries", "throw")
#: Celery's tasks that call another one for each of their items.
_INLINE = {"celery.map": "map", "celery.starmap": "starmap"}


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
    refused = next((name for name in options.get("retry_kwargs") or () if name not in _RETRY), None)
    if refused is not None:
        raise ConfigurationError(
            f"retry_kwargs={options['retry_kwargs']!r} is not allowed: {_of_a_retry(refused)}"
        )


def check_call(task: str, queue: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidCall for the first option of a call that cannot be kept."""
    named = getattr(options.get("queue"), "name", options.get("queue"))
    if named is not None and named != queue:
        raise InvalidCall(
            f"queue={named!r}: calls of {task} go to {queue!r} only, since two queues "
            "cannot keep one id in order. Use another task, or queue_name= at the decorator"
        )
    for name, reason in _CALL.items():
        if options.get(name) not in (None, queue, _NOTHING_ASKED.get(name)):
            _refuse(name, options[name], task, reason)
    check_call_names(task, options)


def check_message(task: str, headers: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
    """Raises InvalidCall for what a call by name asks for, whose sender knows of no ordered task."""
    for name in ("score", "perform_in"):
        if properties.get(name) is not None:
            _refuse(name, properties[name], task, _BY_NAME.format(name=name))
    for name, value in zip(("time_limit", "soft_time_limit"), headers.get("timelimit") or (), strict=False):
        if value is not None:
            _refuse(name, value, task, _CALL[name])


def _refuse(name: str, value: Any, task: str, reason: str) -> NoReturn:
    raise InvalidCall(f"{name}={value!r} is not supported on {task}: {reason}")


def check_retry(options: Mapping[str, Any]) -> None:
    """Of what ``self.retry`` was called with beside times and errors. Raises InvalidCall."""
    for name, value in options.items():
        if value is not None:
            raise InvalidCall(f"retry({name}={value!r}) is not supported: {_of_a_retry(name)}")


def _of_a_retry(name: str) -> str:
    return (
        f"{name} cannot be changed, since the job goes back with its payloads to the same queue. "
        f"Allowed are {', '.join(_RETRY[:-1])}; other work is a call of its own"
    )


def check_caller(task: str, caller: Any) -> None:
    """Of a direct call. Raises InvalidCall when Celery's map or starmap makes it."""
    way = _INLINE.get(getattr(caller, "name", ""))
    if way is not None:
        refuse_inline(task, way)


def refuse_inline(task: str, way: str) -> NoReturn:
    """For map, starmap and chunks. Raises InvalidCall."""
    raise InvalidCall(
        f"{task}.{way} is not supported: Celery would run the items in one plain task, unordered. Use "
        "perform_async([...], results=True), or a group of signatures"
    )
