"""Options of Celery's that an ordered task refuses: each with the reason, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from celery_lowkiq.integration.app.option_names import check_call_names
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.validators import invalid

FIXED = "the number of lanes is fixed when the worker starts. Use -c, or lowkiq_lanes"
ENDLESS = "A thread cannot be stopped from outside. Give run_in='process', or max_run= for an alarm"
THREADS = (
    "its lane runs it in a thread, which cannot be stopped. Use run_in='process', or max_run= for an alarm"
)
_MERGED = "calls of one id are merged into one job"
_STORED = "calls go to the store, not to a broker"
LIMITED = (
    f"{_MERGED}, which has the limits of its task. Give it at the decorator, with run_in='process', or "
    "max_run= for an alarm"
)
_SHOWN = (
    "events and listings show the payloads of a run, cut short. Give a reference to what must stay hidden"
)

#: Refused at a call and at the decorator.
_BOTH = {
    "compression": "payloads are stored as their serializer writes them. Send a reference to large data",
    "serializer": f"{_MERGED}, so all have one serializer. Set lowkiq_serializer",
    "exchange": f"{_STORED}. Use queue_name= to name the ordered queue",
    "routing_key": f"{_STORED}. Use queue_name= to name the ordered queue",
    "delivery_mode": f"{_STORED}. Set lowkiq_push_durability, which says what a call waits for",
    "mandatory": f"{_STORED}, which always takes them",
    "immediate": f"{_STORED}, which always takes them",
}
#: Refused at a call.
REFUSED_AT_A_CALL = {
    **_BOTH,
    "time_limit": LIMITED,
    "soft_time_limit": LIMITED,
    "connection": f"{_STORED}. Set lowkiq_url, which says where that is",
    "expiration": f"{_STORED}. Use expires= to say until when a call may run",
    "retries": "the store counts them. Use max_retries= at the decorator, or self.retry(max_retries=)",
    "perform_in": "only perform_async() takes it. Use eta= for a time, or countdown= for seconds from now",
    "argsrepr": _SHOWN,
    "kwargsrepr": _SHOWN,
}
#: Values that Celery itself passes with a call.
_CELERYS_DEFAULTS = {"retries": 0}
#: Refused at the decorator, and in a class.
REFUSED = {
    **_BOTH,
    "queue": "an ordered task has a queue of its own. Use queue_name= to name it",
    "default_retry_delay": "retry_in= is the delay before a retry. Use it, or self.retry(countdown=)",
    "pydantic": "the function gets payloads by id. Give by=, or validate each payload in the function",
    "Request": "runs come from a lane, not as messages. Use on_failure and the other methods, or signals",
}
#: Refused only of a function that gets payloads by id.
_OF_PLAIN_TASKS = ("pydantic", "default_retry_delay")
_BY_NAME = (
    "send_task() makes it a property of the message, which some brokers drop. Write "
    "headers={{'lowkiq': {{'{name}': ...}}}}"
)
#: Arguments of ``self.retry``: the lane puts the payloads back as they are, in the same queue.
_RETRY = ("exc", "countdown", "eta", "max_retries", "throw")
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
    kwargs = options.get("retry_kwargs") or ()
    if any(name not in _RETRY for name in kwargs):
        raise ConfigurationError(invalid("retry_kwargs", kwargs, *_OF_A_RETRY))


def check_call(task: str, queue: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidCall for the first option of a call that is refused."""
    named = getattr(options.get("queue"), "name", options.get("queue"))
    if named is not None and named != queue:
        expected = f"{queue!r}, the queue of {task}, since two queues cannot keep one id in order"
        raise InvalidCall(
            invalid("queue", named, expected, "Use another task, or queue_name= at the decorator")
        )
    for name, reason in REFUSED_AT_A_CALL.items():
        if options.get(name) not in (None, queue, _CELERYS_DEFAULTS.get(name)):
            _refuse(name, options[name], task, reason)
    check_call_names(task, options)


def check_message(
    task: str, headers: Mapping[str, Any], properties: Mapping[str, Any], limits: Sequence[float | None]
) -> None:
    """Raises InvalidCall for what a call by name may not ask for; its sender does not know the task.

    ``limits``: ``time_limit`` and ``soft_time_limit`` of the task.
    """
    for name in ("score", "perform_in"):
        if properties.get(name) is not None:
            _refuse(name, properties[name], task, _BY_NAME.format(name=name))
    names = "time_limit", "soft_time_limit"
    for name, value, own in zip(names, headers.get("timelimit") or (), limits, strict=False):
        if value not in (None, own):
            _refuse(name, value, task, LIMITED)


def _refuse(name: str, value: Any, task: str, reason: str) -> NoReturn:
    raise InvalidCall(invalid(name, value, f"no {name}= in a call of {task}, since {reason}"))


_OF_A_RETRY = (
    f"only {', '.join(_RETRY[:-1])} for a retry, since the job goes back unchanged to the same queue",
    "Make other work a call of its own",
)


def check_retry(options: Mapping[str, Any]) -> None:
    """Raises InvalidCall for the first argument of ``self.retry`` that would change the call."""
    for name, value in options.items():
        if value is not None:
            raise InvalidCall(invalid(name, value, *_OF_A_RETRY))


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
