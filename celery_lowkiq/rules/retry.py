"""What becomes of a job whose run failed (rules 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .isolation import NOT_ISOLATED, isolated, put_off
from .models import BadPayload, Fate, Job, Verdict
from .retry_delays import LONGEST_PAUSE, Pauses, by_default


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how fast a task's failed jobs run again; ``max_retries`` None means for ever. After an
    error that is ``hopeless`` none does. ``isolate``: a job of a run that failed as a whole dies only alone.
    """

    max_retries: int | None = 25
    pauses: Pauses = by_default
    hopeless: tuple[type[BaseException], ...] = ()
    isolate: bool = True

    def dies(self, job: Job) -> bool:
        """Whether one more failure of the job is its last."""
        return self.max_retries is not None and job.retry_count + 1 >= self.max_retries


def after_failure(
    job: Job,
    policy: RetryPolicy,
    error: bytes,
    delay: float | None = None,
    bad: tuple[BadPayload, ...] = (),
    cause: BaseException | None = None,
    together: int = 0,
) -> Verdict:
    """What becomes of a job whose run failed by ``cause``; ``delay`` (s) replaces ``policy.pauses``.

    ``together``: how many jobs had a run that failed as a whole; 0 when the error is this job's own.
    """
    isolation = isolated(job.isolation, together) if policy.isolate and together else NOT_ISOLATED
    retry_count = job.retry_count + 1
    die = Verdict(job.id, job.claim, Fate.DIE, retry_count, error=error, bad=bad)
    retry = die._replace(fate=Fate.RETRY, isolation=isolation)
    # Of several jobs, any may be to blame: none of them dies.
    may_die = not policy.isolate or together <= 1
    if job.early:
        # A run before the job's own time counts for nothing, else a call a second would use up all retries;
        # but what is given up at once, is.
        given_up = _pause(policy, job.retry_count, None, cause) is False
        early = retry._replace(retry_count=job.retry_count, perform_in=job.perform_in)
        return die if given_up and may_die else early
    if may_die and policy.dies(job):
        return die
    pause = _pause(policy, retry_count, delay, cause)
    if pause is False:
        return die if may_die else retry

    def following(turn: int) -> float | Literal[False]:
        return _pause(policy, retry_count + turn, delay, cause)

    return retry._replace(delay=put_off(isolation.parts, pause, following))


def _pause(
    policy: RetryPolicy, retry_count: int, delay: float | None, cause: BaseException | None
) -> float | Literal[False]:
    """Seconds until the next run; False: the error gives up the job."""
    if isinstance(cause, policy.hopeless):
        return False
    pause = policy.pauses(cause, retry_count) if delay is None else delay
    if pause is False:
        return False
    return min(max(0.0, pause), LONGEST_PAUSE) if pause == pause else LONGEST_PAUSE  # NaN
