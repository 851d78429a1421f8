"""Retry decisions: the settlement of a job whose run failed (rules 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .isolation import NOT_ISOLATED, isolated, isolation_delay
from .models import Disposition, Job, PayloadRemoval, Settlement
from .retry_delays import MAX_RETRY_DELAY, DelayFunction, default_delays


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
        """Whether the job's next failure exhausts its retries."""
        return self.max_retries is not None and job.retry_count + 1 >= self.max_retries


def is_exhausted(job: Job, policy: RetryPolicy, together: int, cause: BaseException | None) -> bool:
    """Whether a failure of the job by ``cause`` is its last; ``together``: see :func:`after_failure`."""
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
