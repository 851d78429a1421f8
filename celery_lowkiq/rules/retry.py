"""Retries: when a failed job runs again, and when it is dead."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import Any, Literal

from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import Disposition, Job, PayloadRemoval, Settlement
from celery_lowkiq.rules.policies import NOT_ISOLATED, isolated, isolation_delay
from celery_lowkiq.rules.validators import invalid

# Retry delays: the values that ``retry_in=`` accepts, as functions.

#: ``(exception, retry_count) -> s``, or False for no retry. Raises what the user's function raises, and
#: ValueError when that returns an invalid delay.
DelayFunction = Callable[[Any, int], "float | Literal[False]"]

#: Maximum retry delay in s, more than 30 years.
MAX_RETRY_DELAY = 1e9
#: The values that ``retry_in=`` accepts, in a message.
ALLOWED = (
    "seconds from 0, a timedelta, 'exponential', a list of delays, a function of (retry_count) or of "
    "(exc, retry_count), or None"
)
IN_LIST = "seconds from 0, a timedelta, or 'exponential'"
RETURNED = "seconds from 0, a timedelta, 'exponential', None or False"


def default_delay(retry_count: int, randint: Callable[[int, int], int] = random.randint) -> float:
    """Return the delay in s: ``n**4 + 15 + randint(0, 29) * (n + 1)``, as in Lowkiq and Sidekiq."""
    return float(retry_count**4 + 15 + randint(0, 29) * (retry_count + 1))


def exponential(retry_count: int) -> float:
    """Return the delay in s: ``30 + n**5``, as in Gator."""
    return 30.0 + float(retry_count) ** 5


def read_delay_function(retry_in: Any) -> DelayFunction:
    """Return the delay function of a ``retry_in=`` value. Raises ConfigurationError for an invalid one."""
    if callable(retry_in):
        return _delay_function(retry_in)
    if is_list(retry_in):
        return _delay_function(_from_list(retry_in))
    if retry_in is not None and _seconds(retry_in, 0) is None:
        raise ConfigurationError(invalid("retry_in", retry_in, ALLOWED))
    return _delay_function(lambda _: retry_in)


def is_list(retry_in: Any) -> bool:
    """True if ``retry_in=`` is a list, whose length is also the number of retries."""
    return isinstance(retry_in, (list, tuple))


def takes_exception(function: Callable[..., Any]) -> bool:
    """True if a function takes (exc, retry_count) rather than (retry_count), by its required parameters.

    Raises ConfigurationError for any other signature.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    others = [p for p in parameters if p not in positional and p.kind is not p.VAR_KEYWORD]
    needs_keyword = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in others)
    if needs_keyword or not (1 <= len(required) <= 2 or (len(positional) == 1 and not others)):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"retry_in={name} is invalid: expected def delay(retry_count) or def delay(exc, retry_count)"
        )
    return len(required) == 2


def _delay_function(function: Callable[..., Any]) -> DelayFunction:
    with_error = takes_exception(function)

    def delay(error: Any, retry_count: int) -> float | Literal[False]:
        answer = function(error, retry_count) if with_error else function(retry_count)
        if answer is None:
            return default_delay(retry_count)
        if answer is False:
            return False
        seconds = _seconds(answer, retry_count)
        if seconds is None:
            raise ValueError(f"retry_in returned {answer!r}: expected {RETURNED}")
        return seconds

    return delay


def _from_list(delays: Sequence[Any]) -> Callable[[int], Any]:
    for place, entry in enumerate(delays):
        if _seconds(entry, place) is None:
            raise ConfigurationError(invalid(f"retry_in[{place}]", entry, IN_LIST))
    if not delays:
        raise ConfigurationError(
            invalid("retry_in", delays, "at least one delay", "Use max_retries=0 for none")
        )
    return lambda retry_count: delays[retry_count] if retry_count < len(delays) else False


def _seconds(value: Any, retry_count: int) -> float | None:
    if isinstance(value, str):
        return exponential(retry_count) if value == "exponential" else None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        return None
    return float(min(value, MAX_RETRY_DELAY))


#: The delays of a task without ``retry_in=``.
default_delays: DelayFunction = read_delay_function(None)


# Retry decisions: the settlement of a job whose run failed (rules 5 and 6).


@dataclass(frozen=True)
class RetryPolicy:
    """The retry options of a task, by their names; ``max_retries`` None means no limit.

    ``isolate_failures``: a job whose batch failed as a whole runs alone before it may go to the morgue.
    """

    max_retries: int | None = 25
    retry_in: DelayFunction = default_delays
    dont_retry: tuple[type[BaseException], ...] = ()
    isolate_failures: bool = True

    def dies(self, job: Job) -> bool:
        """True if the job's next failure exhausts its retries."""
        return self.max_retries is not None and job.retry_count + 1 >= self.max_retries


def is_exhausted(job: Job, policy: RetryPolicy, together: int, cause: BaseException | None) -> bool:
    """True if a failure of the job by ``cause`` is its last; ``together``: see :func:`after_failure`."""
    last = isinstance(cause, policy.dont_retry) or (not job.early and policy.dies(job))
    return last and _may_die(policy, together)


def _may_die(policy: RetryPolicy, together: int) -> bool:
    # Any job of a batch may have caused the failure, so none of them dies.
    return not policy.isolate_failures or together <= 1


def after_failure(
    job: Job,
    policy: RetryPolicy,
    error: bytes,
    delay: float | None = None,
    bad: tuple[PayloadRemoval, ...] = (),
    cause: BaseException | None = None,
    together: int = 0,
) -> Settlement:
    """Return the settlement of a job that failed by ``cause``; ``delay`` (s) replaces ``policy.retry_in``.

    ``together``: number of jobs of a batch that failed as a whole; 0 when the error is this job's own.
    """
    isolation = isolated(job.isolation, together) if policy.isolate_failures and together else NOT_ISOLATED
    retry_count = job.retry_count + 1
    die = Settlement(job.id, job.claim, Disposition.DIE, retry_count, error=error, bad=bad)
    retry = die._replace(disposition=Disposition.RETRY, isolation=isolation)
    may_die = _may_die(policy, together)
    if job.early:
        # An early run does not count as a retry, or one call per second would exhaust them. An error that is
        # not retried at all still ends the job.
        given_up = _retry_delay(policy, job.retry_count, None, cause) is False
        early = retry._replace(retry_count=job.retry_count, perform_in=job.perform_in)
        return die if given_up and may_die else early
    if is_exhausted(job, policy, together, cause):
        return die
    own_delay = _retry_delay(policy, retry_count, delay, cause)
    if own_delay is False:
        return die if may_die else retry

    def next_delay(turn: int) -> float | Literal[False]:
        return _retry_delay(policy, retry_count + turn, delay, cause)

    return retry._replace(delay=isolation_delay(isolation.parts, own_delay, next_delay))


def _retry_delay(
    policy: RetryPolicy, retry_count: int, delay: float | None, cause: BaseException | None
) -> float | Literal[False]:
    """Return the seconds until the next run, or False for no retry."""
    if isinstance(cause, policy.dont_retry):
        return False
    seconds = policy.retry_in(cause, retry_count) if delay is None else delay
    if seconds is False:
        return False
    return min(max(0.0, seconds), MAX_RETRY_DELAY) if seconds == seconds else MAX_RETRY_DELAY  # NaN
