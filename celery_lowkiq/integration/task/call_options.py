"""Options of a call that a broker would need: what they mean for an ordered task, or why they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.option_names import check_call_names
from celery_lowkiq.integration.runs.task_function import is_async
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.validators import invalid, run_limit

_STORED = "calls go to the store, not to a broker"
_ROUTED = "calls of one id must stay in one queue, which queue_name= at the decorator names"
_SERIALIZED = "calls of one id are merged, so all have one serializer: lowkiq_serializer"
#: Without effect, because they only say how a message travels: logged once for each task.
IGNORED_AT_A_CALL = {
    "queue": _ROUTED,
    "exchange": _ROUTED,
    "routing_key": _ROUTED,
    "router": _ROUTED,
    "serializer": _SERIALIZED,
    "compression": "payloads are stored as their serializer writes them",
    "delivery_mode": f"{_STORED}. lowkiq_push_durability says what a call waits for",
    "mandatory": f"{_STORED}, which always takes them",
    "immediate": f"{_STORED}, which always takes them",
    "connection": f"{_STORED}. lowkiq_url says where that is",
}
#: Refused, because the call would mean something else.
REFUSED_AT_A_CALL = {
    "expiration": f"{_STORED}. Use expires= to say until when a call may run",
    "retries": "the store counts them. Use max_retries= at the decorator, or self.retry(max_retries=)",
    "perform_in": "only perform_async() takes it. Use eta= for a time, or countdown= for seconds from now",
}
#: Values that Celery itself passes with a call.
_CELERYS_DEFAULTS = {"retries": 0}
_BY_NAME = (
    "send_task() makes it a property of the message, which some brokers drop. Write "
    "headers={{'lowkiq': {{'{name}': ...}}}}"
)
#: As Celery's header ``timelimit`` has them.
LIMITS = ("time_limit", "soft_time_limit")


def take_ignored(task: Any, options: dict[str, Any]) -> None:
    """Take out the options of a call that have no effect, and warn of them.

    Raises InvalidCall for the first refused one.
    """
    queue = task.queue_spec.name
    for name, reason in IGNORED_AT_A_CALL.items():
        value = options.pop(name, None)
        if value and getattr(value, "name", value) != queue:
            warn_once(task, name, f"{name}= of a call is ignored, because {reason}")
    for name, reason in REFUSED_AT_A_CALL.items():
        if options.get(name) not in (None, _CELERYS_DEFAULTS.get(name)):
            _refuse(name, options[name], task.name, reason)
    check_call_names(task.name, options)
    for name in LIMITS:
        if not run_limit.accepts(options.get(name)):
            raise InvalidCall(invalid(name, options[name], run_limit.expected))
    warn_of_limits(task, options)


def check_message(task: str, properties: Mapping[str, Any]) -> None:
    """Raises InvalidCall for what a call by name may not ask for; its sender does not know the task."""
    for name in ("score", "perform_in"):
        if properties.get(name) is not None:
            _refuse(name, properties[name], task, _BY_NAME.format(name=name))


def warn_of_limits(task: Any, limits: Mapping[str, Any]) -> None:
    """Warn of the time limits of a call, or of a task, that its runs cannot keep."""
    for name in LIMITS:
        value = limits.get(name)
        if value is not None and not _keeps(task, name):
            warn_once(
                task,
                name,
                f"{name}={value!r} has no effect, because a lane runs the task in a thread, which nothing "
                "can stop. Give the task run_in='process', or max_run= for an alarm",
            )


def _keeps(task: Any, limit: str) -> bool:
    in_process = (task.run_in or context_of(task._get_app()).settings.run_in) == "process"
    return in_process or (limit == "soft_time_limit" and is_async(task.run))


def warn_once(task: Any, option: str, text: str) -> None:
    """Log a warning about an option, once in this process for each task."""
    warned: set[str] = task.__dict__.setdefault("_warned_options", set())
    if option not in warned:
        warned.add(option)
        logger.warning("%s: %s", task.name, text)


def _refuse(name: str, value: Any, task: str, reason: str) -> NoReturn:
    raise InvalidCall(invalid(name, value, f"no {name}= in a call of {task}, since {reason}"))
