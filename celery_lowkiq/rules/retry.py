"""What becomes of a job whose run failed (rules 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass

from .models import BadPayload, Fate, Job, Verdict
from .pauses import LONGEST_PAUSE, Pauses, by_default


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how fast a task's failed jobs run again; ``max_retries`` None means for ever. After an
    error that is ``hopeless`` none does.
    """

    max_retries: int | None = 25
    pauses: Pauses = by_default
    hopeless: tuple[type[BaseException], ...] = ()

    def dies(self, job: Job) -> bool:
        """Whether one more failure of the job is its last."""
        return self.max_retries is not None and job.retry_count + 1 >= self.max_retries


def after_failure(
    job: Job,
    policy: RetryPolicy,
    error: bytes,
    delay: float | None = None,
    bad: tuple[BadPayload, ...] = (),
    cause: Exception | None = None,
) -> Verdict:
    """What becomes of a job whose run failed by ``cause``; ``delay`` (s) replaces ``policy.pauses``."""
    retry_count = job.retry_count + 1
    if job.early:
        return _after_early_run(job, policy, error, bad, cause)
    if not policy.dies(job) and not isinstance(cause, policy.hopeless):
        pause = policy.pauses(cause, retry_count) if delay is None else delay
        if pause is not False:
            pause = min(max(0.0, pause), LONGEST_PAUSE) if pause == pause else LONGEST_PAUSE  # NaN
            return Verdict(job.id, job.claim, Fate.RETRY, retry_count, pause, error, bad)
    return Verdict(job.id, job.claim, Fate.DIE, retry_count, error=error, bad=bad)


def _after_early_run(
    job: Job, policy: RetryPolicy, error: bytes, bad: tuple[BadPayload, ...], cause: Exception | None
) -> Verdict:
    """A run before the job's own time counts for nothing, else a call a second would use up all retries; but
    what is given up at once, is.
    """
    if isinstance(cause, policy.hopeless) or policy.pauses(cause, job.retry_count) is False:
        return Verdict(job.id, job.claim, Fate.DIE, job.retry_count + 1, error=error, bad=bad)
    return Verdict(job.id, job.claim, Fate.RETRY, job.retry_count, 0.0, error, bad, perform_in=job.perform_in)
