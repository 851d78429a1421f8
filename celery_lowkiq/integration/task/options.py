"""Options of an ordered task, checked when the function is decorated or the class is made."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from celery import Celery
from celery.app.annotations import resolve_all as resolve_all_annotations

from celery_lowkiq.integration.app.option_names import check_option_names
from celery_lowkiq.integration.app.rate_limits import read_rate
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import MAX_SHARDS, Merge
from celery_lowkiq.rules.retry_delays import ALLOWED as PAUSES
from celery_lowkiq.rules.retry_delays import read_pauses

from .queue_options import POLICIES, check_queue_policies
from .retry_options import ERRORS, are_errors, check_policies
from .unsupported import check_celery_options

MAX_BATCH = 1000
MAX_PAYLOADS = 1000
QUEUE_NAME = re.compile(r"[!-z|~]{1,255}")
#: Where Celery wraps the function of a task with ``pydantic=True``; the option itself does not get here.
CELERYS_WRAPPER = "celery.app.base"
#: Options that are functions; a function among a task's attributes must not become a method.
FUNCTIONS = ("retry_in", "on_retries_exhausted", "key")
RIGHT_FORM = "def sync_order(payloads_by_id): ..."


def _whole(low: int, high: int | None) -> Callable[[Any], bool]:
    def allowed(value: Any) -> bool:
        number = isinstance(value, int) and not isinstance(value, bool)
        return number and value >= low and (high is None or value <= high)

    return allowed


is_count = _whole(0, None)


def _seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _or_none(allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or allowed(value)


_CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shards": (_whole(1, MAX_SHARDS), f"a whole number from 1 to {MAX_SHARDS}"),
    "batch_size": (_whole(1, MAX_BATCH), f"a whole number from 1 to {MAX_BATCH}"),
    "max_retries": (_or_none(is_count), "a whole number from 0, or None for ever"),
    "max_crashes": (_whole(1, None), "a whole number from 1"),
    "max_run": (_or_none(_seconds), "seconds above 0, or None"),
    "queue_name": (
        _or_none(lambda value: isinstance(value, str) and bool(QUEUE_NAME.fullmatch(value))),
        "1 to 255 printable ASCII characters without space and braces, or None for the task's name",
    ),
    "merge": (lambda value: value in [member.value for member in Merge], "'min' or 'max'"),
    **{name: (_or_none(callable), "a function, or None") for name in FUNCTIONS},
    "retry_in": (read_pauses, PAUSES),
    "max_payloads_per_run": (
        _or_none(_whole(1, MAX_PAYLOADS)),
        f"a whole number from 1 to {MAX_PAYLOADS}, which is the most that a claim takes, or None",
    ),
    "dont_retry": (_or_none(are_errors), ERRORS),
    "isolate_failures": (lambda value: isinstance(value, bool), "True or False"),
}


def check_options(options: Mapping[str, Any], base: Any) -> None:
    """Raises ConfigurationError for the first option of ours whose value is not allowed. Functions are given
    as they will be called; ``base`` has the options that are not given.
    """
    for name, (allowed, words) in _CHECKS.items():
        if name in options and not allowed(_plain(options[name])):
            raise ConfigurationError(f"{name}={options[name]!r} is not allowed: {words}")
    read_rate(options.get("rate_limit"))
    check_queue_policies(options, base)
    check_policies({name: _plain(value) for name, value in options.items()})
    check_celery_options(options)


def check_names_of(given: Iterable[str], *bases: Any) -> None:
    """Raises ConfigurationError for a misspelt option; the attributes of ``bases`` are known."""
    check_option_names(given, {name for base in bases for name in dir(base)}, (*_CHECKS, *POLICIES))


def check_annotations(task: Any, app: Celery) -> None:
    """``task_annotations`` change a task's options when the app takes it in. Raises ConfigurationError."""
    found: Iterable[Any] = resolve_all_annotations(app.annotations, task)
    for given in found:
        # The class itself has them by now.
        check_names_of((name for name in given if not name.startswith("@")), *task.__bases__)
        check_options({"autoretry_for": getattr(task, "autoretry_for", None), **given}, task)
        for name, value in as_attributes(given).items():
            setattr(task, name, value)


def check_queue_name(name: str) -> None:
    """Raises ConfigurationError when a task's name cannot be its queue's."""
    if not QUEUE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"the task's name {name!r} cannot be its queue's: give queue_name=, {_CHECKS['queue_name'][1]}"
        )


def check_function(function: Callable[..., Any], bound: bool) -> None:
    """Raises ConfigurationError unless the function can be called with the payloads by id."""
    name = getattr(function, "__qualname__", repr(function))
    if getattr(function, "__globals__", {}).get("__name__") == CELERYS_WRAPPER:
        check_celery_options({"pydantic": True})
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{name} is async, which a lane cannot run: write {RIGHT_FORM}")
    if inspect.isgeneratorfunction(function):
        raise ConfigurationError(
            f"{name} is a generator, whose body would never run: write {RIGHT_FORM} without yield"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([None, None] if bound else [None]))
    except TypeError:
        form = "def sync_order(self, payloads_by_id): ..." if bound else RIGHT_FORM
        raise ConfigurationError(
            f"{name}{signature} cannot be called with one argument, the payloads by id: write {form}"
        ) from None


def as_attributes(options: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Options as class attributes: functions stay functions. ``owner`` is the qualified name of a class whose
    own methods are left alone.
    """
    return {
        name: staticmethod(value) if name in FUNCTIONS and _is_given(value, f"{owner}.{name}") else value
        for name, value in options.items()
    }


def _is_given(value: Any, method: str) -> bool:
    """Whether it is a function from elsewhere, and not the method that a class body defines."""
    if isinstance(value, (staticmethod, classmethod)):
        return False
    return callable(value) and getattr(value, "__qualname__", None) != method


def _plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
