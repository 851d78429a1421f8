"""When a failed job runs again, and when it dies (rules 5 and 6)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .models import BadPayload, Fate, Job, Verdict


def default_retry_in(retry_count: int, randint: Callable[[int, int], int] = random.randint) -> float:
    """Pause before the next run, in s: ``n**4 + 15 + randint(0, 29) * (n + 1)``, as Lowkiq and Sidekiq."""
    return float(retry_count**4 + 15 + randint(0, 29) * (retry_count + 1))


#: Seconds, more than 30 years: what is longer, was meant as never.
LONGEST_PAUSE = 1e9


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how fast a task's failed jobs run again; ``max_retries`` None means for ever."""

    max_retries: int | None = 25
    retry_in: Callable[[int], float] = default_retry_in

    def dies(self, job: Job) -> bool:
        """Whether one more failure of the job is its last."""
        return self.max_retries is not None and job.retry_count + 1 >= self.max_retries


def after_failure(
    job: Job,
    policy: RetryPolicy,
    error: bytes,
    delay: float | None = None,
    bad: tuple[BadPayload, ...] = (),
) -> Verdict:
    """What becomes of a job whose run failed; ``delay`` (s) replaces ``policy.retry_in``."""
    retry_count = job.retry_count + 1
    if policy.dies(job):
        return Verdict(job.id, job.claim, Fate.DIE, retry_count, error=error, bad=bad)
    pause = policy.retry_in(retry_count) if delay is None else delay
    pause = min(max(0.0, pause), LONGEST_PAUSE) if pause == pause else LONGEST_PAUSE  # NaN is not equal
    return Verdict(job.id, job.claim, Fate.RETRY, retry_count, pause, error, bad)
