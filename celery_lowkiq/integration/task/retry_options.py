"""Retry options of an ordered task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict

from celery.exceptions import TaskPredicate

from celery_lowkiq.integration.runs.base_exceptions import may_fail
from celery_lowkiq.integration.runs.outcomes import Again, BusinessFailure, JobsFailed
from celery_lowkiq.rules.retry_delays import ALLOWED, is_list, read_delay_function
from celery_lowkiq.rules.validators import Option, Validator, boolean, matching, whole

RetryDelay = float | timedelta | Literal["exponential"]
RetryIn = RetryDelay | Sequence[RetryDelay] | Callable[[int], Any] | Callable[[Any, int], Any] | None

#: Exceptions by which a task function itself decides about a job: they are no errors.
DECISIONS: tuple[type[BaseException], ...] = (TaskPredicate, Again, BusinessFailure, JobsFailed)


def _are_errors(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(kind, type)
        and issubclass(kind, BaseException)
        and may_fail(kind)
        and not issubclass(kind, DECISIONS)
        for kind in value
    )


class RetryOptions(TypedDict, total=False):
    """Options that say whether and when a failed job runs again."""

    max_retries: Annotated[
        int | None,
        Option(25, whole(0).or_none(), "Number of retries of a failed job. 0: no retry. None: no limit."),
    ]
    retry_in: Annotated[
        RetryIn,
        Option(
            None,
            Validator(ALLOWED, read_delay_function),
            "Delay before the next run of a failed job, see [retries](policies.md#retries). None: `n**4 + "
            "15 + randint(0, 29) * (n + 1)` seconds.",
        ),
    ]
    dont_retry: Annotated[
        tuple[type[Exception], ...] | None,
        Option(
            None,
            matching("a tuple of exception classes", _are_errors).or_none(),
            "Exceptions that no retry can fix. The payload with the smallest score goes to the morgue at "
            "once.",
        ),
    ]
    isolate_failures: Annotated[
        bool,
        Option(
            True,
            boolean,
            "Whether a batch that failed as a whole runs again in halves, so that a job dies only when it "
            "fails alone or is named. False: all jobs of the batch are retried and die together, as in "
            "Lowkiq. See [a bad payload among others](policies.md#a-bad-payload-among-others).",
        ),
    ]
    on_retries_exhausted: Annotated[
        Callable[[list[Any]], Any] | None,
        Option(
            None,
            matching("a function", callable).or_none(),
            "Called with a list of the jobs that died in a run: `id`, `payloads` and `scores` (of [the dead "
            "payload only](outcomes.md)), `retry_count`, `error`.",
        ),
    ]


def retry_conflicts(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Given retry options that contradict each other: the name of one, what it should be, and what to do."""
    delays: Any = options.get("retry_in")
    hopeless = options.get("dont_retry")
    if is_list(delays) and options.get("max_retries", len(delays)) != len(delays):
        expected = f"{len(delays)}, the number of delays in retry_in={delays!r}"
        yield "max_retries", expected, "Leave max_retries= out"
    if hopeless and options.get("dont_autoretry_for"):
        expected = "no dont_autoretry_for= beside it, which means the same"
        yield "dont_retry", expected, "Name all exceptions in dont_retry="
    both = [kind.__name__ for kind in hopeless or () if kind in (options.get("autoretry_for") or ())]
    if both:
        expected = f"exceptions that are not in autoretry_for=, as {', '.join(both)} is"
        yield "dont_retry", expected, "Take it out of one of them"
