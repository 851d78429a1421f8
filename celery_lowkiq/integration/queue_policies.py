"""Policies of a task: their options, checked together, and what store and worker make of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.policies import MARK_SECONDS, NONE, AfterFailure, Policies, WhenFull

SECONDS = "seconds above 0, or a timedelta"
LARGEST_KEEP = 1000


def seconds_of(value: Any) -> float | None:
    """Seconds of a number or timedelta; None for what is neither, or not above 0."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value < math.inf else None


def _whole(value: Any, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high


def _is_time(value: Any) -> bool:
    return seconds_of(value) is not None


def _one_of(values: Any) -> tuple[Callable[[Any], bool], str]:
    names = [member.value for member in values]
    return lambda value: value in names, " or ".join(map(repr, names))


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "keep": (
        lambda value: value == "all" or _whole(value, LARGEST_KEEP),
        f"'all', or a whole number of payloads from 1 to {LARGEST_KEEP}",
    ),
    "debounce": (_is_time, SECONDS),
    "debounce_max": (_is_time, SECONDS),
    "drop_stale": (
        lambda value: isinstance(value, bool) or _is_time(value),
        f"True, False, or for how long an id is remembered: {SECONDS}",
    ),
    "on_push_after_failure": _one_of(AfterFailure),
    "max_length": (_whole, "a whole number of jobs from 1"),
    "when_full": _one_of(WhenFull),
    "job_ttl": (_is_time, SECONDS),
}
#: What an option stands for when it is not given.
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("debounce", "debounce_max", "max_length", "job_ttl")),
    "keep": "all",
    "drop_stale": False,
    "on_push_after_failure": AfterFailure.WAIT.value,
    "when_full": WhenFull.REFUSE.value,
}


class QueuePolicies:
    """Options of an ordered task that change what its queue does with calls."""

    #: How many payloads a waiting job keeps, those with the highest scores, or "all".
    keep: int | str = "all"
    #: Each call puts its job off to so many s after it ...
    debounce: Any = None
    #: ... at most to so many s after the first call that waits.
    debounce_max: Any = None
    #: Drop payloads whose score is below one that was processed for their id; a number says for how long an
    #: id is remembered, in s.
    drop_stale: Any = False
    #: Whether a call for a job that waits for its retry waits with it ("wait"), or has it run "now".
    on_push_after_failure: str = "wait"
    #: How many jobs may wait in the queue.
    max_length: int | None = None
    #: What becomes of a new job in a full queue: "refuse", "drop_newest" or "drop_oldest".
    when_full: str = "refuse"
    #: A payload that has not started to run so many s after its call is dropped.
    job_ttl: Any = None


def check_queue_policies(options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for a value that is not allowed, and for policies that exclude each other."""
    given = {name: options[name] for name in DEFAULTS if options.get(name, DEFAULTS[name]) != DEFAULTS[name]}
    for name, value in given.items():
        allowed, words = _CHECKS[name]
        if not allowed(value):
            raise ConfigurationError(f"{name}={value!r} is not allowed: {words}")
    for wrong, message in _contradictions({**DEFAULTS, **given}, options):
        if wrong:
            raise ConfigurationError(message)


def _contradictions(given: Mapping[str, Any], options: Mapping[str, Any]) -> list[tuple[bool, str]]:
    debounce, longest, ttl = (seconds_of(given[name]) for name in ("debounce", "debounce_max", "job_ttl"))
    return [
        (
            longest is not None and debounce is None,
            f"debounce_max={given['debounce_max']!r} bounds a debounce, but there is none: give debounce=",
        ),
        (
            None not in (longest, debounce) and longest < debounce,  # type: ignore[operator]
            f"debounce_max={given['debounce_max']!r} is less than debounce={given['debounce']!r}: no call "
            "would ever put the job off",
        ),
        (
            None not in (ttl, debounce) and ttl <= debounce,  # type: ignore[operator]
            f"job_ttl={given['job_ttl']!r} is not more than debounce={given['debounce']!r}: each payload "
            "would be dropped before it may start",
        ),
        (
            given["when_full"] != WhenFull.REFUSE.value and given["max_length"] is None,
            f"when_full={given['when_full']!r} needs max_length=: without it no queue is ever full",
        ),
        (
            given["on_push_after_failure"] == AfterFailure.NOW.value and options.get("max_retries", 25) == 0,
            "on_push_after_failure='now' needs retries, but max_retries=0: no job ever waits for one",
        ),
    ]


def policies_of(task: Any) -> Policies:
    """The policies that the store hears of."""
    stale = MARK_SECONDS if task.drop_stale is True else seconds_of(task.drop_stale)
    found = Policies(
        keep=None if task.keep == "all" else task.keep,
        debounce=seconds_of(task.debounce),
        debounce_max=seconds_of(task.debounce_max),
        drop_stale=stale,
        on_push_after_failure=AfterFailure(task.on_push_after_failure),
        max_length=task.max_length,
        when_full=WhenFull(task.when_full),
    )
    return NONE if found == NONE else found
