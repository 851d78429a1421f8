"""Policies of a task: their options, checked together, and what store and worker make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_lowkiq.integration.app.context import home_of
from celery_lowkiq.integration.app.durations import seconds_of
from celery_lowkiq.integration.app.rate_limits import RATES, is_rate, read_rate
from celery_lowkiq.integration.calls.validation import PRIORITIES, is_priority
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.policies import MARK_SECONDS, NONE, AfterFailure, Policies, WhenFull
from celery_lowkiq.rules.priorities import MOST_URGENT
from celery_lowkiq.rules.retry_delays import LONGEST_PAUSE

SECONDS = f"seconds above 0 up to {LONGEST_PAUSE:,.0f}, or a timedelta"
LARGEST_KEEP = 1000
#: Options of a task that a policy may contradict.
OTHERS = ("expires", "max_payloads_per_run", "max_retries", "rate_limit")


def _whole(value: Any, high: float | None = None) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= 1
        and (high is None or value <= high)
    )


def _is_time(value: Any) -> bool:
    return seconds_of(value) is not None


def _one_of(values: Any) -> tuple[Callable[[Any], bool], str]:
    names = [member.value for member in values]
    return lambda value: value in names, " or ".join(map(repr, names))


#: What each of them may be, as a check and in words.
POLICIES: dict[str, tuple[Callable[[Any], bool], str]] = {
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
    "priority": (is_priority, PRIORITIES),
    "retry_priority": (is_priority, PRIORITIES),
    "rate_limit_per_id": (is_rate, RATES),
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
    #: Of calls that give none, from 0, the most urgent, to 9; None takes task_default_priority, or 0.
    priority: int | None = None
    #: Of a job that waits for its retry; None keeps its own.
    retry_priority: int | None = None
    #: How often one id may run, as Celery's rate_limit: "10/m", or a number of runs a second.
    rate_limit_per_id: Any = None


def check_queue_policies(options: Mapping[str, Any], base: Any) -> None:
    """Raises ConfigurationError for a value that is not allowed, and for policies that exclude each other;
    those that are not among the options are the ``base``'s.
    """
    given = {name: options.get(name, getattr(base, name)) for name in POLICIES}
    for name, (allowed, words) in POLICIES.items():
        if given[name] != getattr(QueuePolicies, name) and not allowed(given[name]):
            raise ConfigurationError(f"{name}={given[name]!r} is not allowed: {words}")
    others = {name: options.get(name, getattr(base, name)) for name in OTHERS}
    for wrong, message in (*_of_time(given, others), *_of_number(given, others)):
        if wrong:
            raise ConfigurationError(message)


def _of_time(given: Mapping[str, Any], others: Mapping[str, Any]) -> list[tuple[bool, str]]:
    debounce, longest, ttl = (seconds_of(given[name]) for name in ("debounce", "debounce_max", "job_ttl"))
    return [
        (
            longest is not None and debounce is None,
            f"debounce_max={given['debounce_max']!r} bounds a debounce, but there is none: give debounce=",
        ),
        (
            debounce is not None and longest is not None and longest < debounce,
            f"debounce_max={given['debounce_max']!r} is less than debounce={given['debounce']!r}: no call "
            "would ever put the job off",
        ),
        (
            debounce is not None and ttl is not None and ttl <= debounce,
            f"job_ttl={given['job_ttl']!r} is not more than debounce={given['debounce']!r}: each payload "
            "would be dropped before it may start",
        ),
        (
            ttl is not None and others["expires"] is not None,
            f"job_ttl={given['job_ttl']!r} is not allowed with expires={others['expires']!r}, which says the "
            "same of each call, also after a failure: take one of them out",
        ),
    ]


def _of_number(given: Mapping[str, Any], others: Mapping[str, Any]) -> list[tuple[bool, str]]:
    keep, portion = given["keep"], others["max_payloads_per_run"]
    each, all_ids = read_rate(given["rate_limit_per_id"]), read_rate(others["rate_limit"])
    return [
        (
            each is not None and all_ids is not None and each >= all_ids,
            f"rate_limit_per_id={given['rate_limit_per_id']!r} limits nothing, since all ids together may "
            f"run no more often by rate_limit={others['rate_limit']!r}: give a lower one",
        ),
        (
            given["retry_priority"] is not None and others["max_retries"] == 0,
            f"retry_priority={given['retry_priority']!r} needs retries, but max_retries=0: no job ever waits "
            "for one",
        ),
        (
            keep != "all" and portion is not None and portion >= keep,
            f"max_payloads_per_run={portion!r} is not less than keep={keep!r}: no job ever has more payloads "
            "than one run gets: take one of them out",
        ),
        (
            given["when_full"] != WhenFull.REFUSE.value and given["max_length"] is None,
            f"when_full={given['when_full']!r} needs max_length=: without it no queue is ever full",
        ),
        (
            given["on_push_after_failure"] == AfterFailure.NOW.value and others["max_retries"] == 0,
            "on_push_after_failure='now' needs retries, but max_retries=0: no job ever waits for one",
        ),
    ]


def _usual_priority(task: Any) -> int:
    """Celery has filled in task_default_priority. Raises ConfigurationError."""
    if task.priority is not None and not is_priority(task.priority):
        raise ConfigurationError(
            f"task_default_priority={task.priority!r} is not allowed for an ordered task: {PRIORITIES}. Give "
            f"{task.name} a priority= of its own"
        )
    return task.priority or MOST_URGENT


def policies_of(task: Any) -> Policies:
    """The policies that the store hears of."""
    app = task._get_app()
    limited = not app.conf.worker_disable_rate_limits
    stale = MARK_SECONDS if task.drop_stale is True else seconds_of(task.drop_stale)
    found = Policies(
        keep=None if task.keep == "all" else task.keep,
        debounce=seconds_of(task.debounce),
        debounce_max=seconds_of(task.debounce_max),
        drop_stale=stale,
        on_push_after_failure=AfterFailure(task.on_push_after_failure),
        max_length=task.max_length,
        when_full=WhenFull(task.when_full),
        priority=_usual_priority(task),
        retry_priority=task.retry_priority,
        priority_max_wait=home_of(app).settings.priority_max_wait,
        rate_per_id=read_rate(task.rate_limit_per_id) if limited else None,
        per_run=task.max_payloads_per_run,
    )
    return NONE if found == NONE else found
