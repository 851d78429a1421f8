"""One run of a task function on a batch: what it gets, and what becomes of each job."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from celery.exceptions import MaxRetriesExceededError, Retry

from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import BadPayload, Batch, Fate, Flag, Job, Verdict
from celery_lowkiq.rules.retry import RetryPolicy, after_failure, default_retry_in

from .codec import Codec
from .errors import dump_error, dump_error_text, load_error
from .settings import Settings

logger = logging.getLogger("celery_lowkiq")

#: Seconds before a job whose run raised Reject(requeue=True) may run again.
REQUEUE_PAUSE = 1.0


@dataclass(frozen=True)
class RunJob:
    """A job as the task function and its callbacks see it; payloads and scores in the same order."""

    id: str
    payloads: tuple[Any, ...]
    scores: tuple[float, ...]
    #: -1 never failed, 0 failed once, ...
    retry_count: int
    #: Unix time in s.
    perform_in: float
    #: Text of the last failure.
    error: str | None


@dataclass(frozen=True)
class RunInfo:
    """``self.request.lowkiq``: where the batch comes from."""

    queue: str
    shard: int
    #: The epoch of the shard's lease; it only grows, so that a database can refuse an older one.
    fence: int
    jobs: tuple[RunJob, ...]
    #: ``lease_lost.is_set()`` while another worker may have the shard: Redis was silent for too long.
    lease_lost: Flag = field(compare=False)


def decode(
    batch: Batch, codec: Codec, settings: Settings
) -> tuple[tuple[RunJob, ...], dict[str, tuple[BadPayload, ...]]]:
    """The jobs with what can be read of their payloads, and by id what cannot."""
    jobs, bad = [], {}
    for job in batch.jobs:
        run_job, bad[job.id] = _decode_job(job, codec, settings)
        if run_job.payloads:
            jobs.append(run_job)
    return tuple(jobs), bad


def _decode_job(job: Job, codec: Codec, settings: Settings) -> tuple[RunJob, tuple[BadPayload, ...]]:
    payloads, scores, bad = [], [], []
    for position, payload in enumerate(job.payloads):
        try:
            payloads.append(codec.load(payload.data))
            scores.append(payload.score)
        except UndecodablePayload as reason:
            logger.error("job %r: payload %d goes to the morgue: %s", job.id, position, reason)
            bad.append(BadPayload(position, dump_error_text(settings, f"undecodable payload: {reason}")))
    error = load_error(settings, job.error)
    run_job = RunJob(job.id, tuple(payloads), tuple(scores), job.retry_count, job.perform_in, error)
    return run_job, tuple(bad)


class Run:
    """Collects the verdicts of a batch. All jobs are done unless something says otherwise."""

    def __init__(self, batch: Batch, policy: RetryPolicy, codec: Codec, settings: Settings) -> None:
        self.batch = batch
        self.jobs, self._bad = decode(batch, codec, settings)
        self.error: str | None = None
        #: Whether the verdicts are known; what fails around the function later does not change them.
        self.decided = False
        self._policy = policy
        self._settings = settings
        self.verdicts = self._each(self._done)

    @property
    def info(self) -> RunInfo:
        lease = self.batch.lease
        return RunInfo(lease.shard.queue, lease.shard.index, lease.epoch, self.jobs, self.batch.lost)

    @property
    def payloads_by_id(self) -> dict[str, list[Any]]:
        """What the task function is called with."""
        return {job.id: list(job.payloads) for job in self.jobs}

    @property
    def retries(self) -> int:
        """Celery's word: how often the job that failed most was tried before."""
        return max((job.retry_count + 1 for job in self.jobs), default=0)

    def fails(self, error: Exception, retry: Retry | None = None) -> Exception:
        """Decide about every job. Returns what Celery is to see: a Retry while any job of the batch runs
        again, else the error itself.
        """
        self.decided = True
        delay = None if retry is None else _seconds(retry)
        policy = replace(self._policy, max_retries=getattr(retry, "max_retries", self._policy.max_retries))
        data = dump_error(self._settings, error)
        self.error = load_error(self._settings, data)
        self.verdicts = self._each(lambda job: after_failure(job, policy, data, delay, self._bad[job.id]))
        delays = [verdict.delay for verdict in self.verdicts if verdict.fate is Fate.RETRY]
        if delays:
            return Retry(exc=error, when=min(delays))  # type: ignore[arg-type]
        return MaxRetriesExceededError(str(error)) if isinstance(error, Retry) else error

    def rejected(self, error: BaseException, requeue: bool) -> None:
        """The task raised Reject: back unchanged, or all payloads to the morgue."""
        data = dump_error_text(self._settings, f"Reject: {getattr(error, 'reason', error)}")
        # At its own time it would be the oldest job of the lane for ever, and the only one to run.
        fate, delay = (Fate.RETURN, REQUEUE_PAUSE) if requeue else (Fate.BURY, 0.0)
        self.verdicts = self._each(
            lambda job: Verdict(job.id, job.claim, fate, delay=delay, error=data, bad=self._bad[job.id])
        )

    def exhausted(self, accepted: frozenset[str]) -> list[RunJob]:
        """The jobs that died in this run, with the error that they died of."""
        dead = {verdict.id for verdict in self.verdicts if verdict.fate is Fate.DIE} & accepted
        return [replace(job, error=self.error) for job in self.jobs if job.id in dead]

    def _done(self, job: Job) -> Verdict:
        return Verdict(job.id, job.claim, Fate.DONE, bad=self._bad[job.id])

    def _each(self, verdict: Callable[[Job], Verdict]) -> tuple[Verdict, ...]:
        """A verdict for each job that has run; one of which nothing could be read is done with."""
        ran = {job.id for job in self.jobs}
        return tuple(verdict(job) if job.id in ran else self._done(job) for job in self.batch.jobs)


def _seconds(retry: Retry) -> float | None:
    """Delay that ``self.retry`` asked for; our own ``retry`` turns an eta into seconds."""
    return float(retry.when) if isinstance(retry.when, Real) else None


def guarded(retry_in: Callable[[int], Any] | None) -> Callable[[int], float]:
    """The user's ``retry_in``; where it fails or returns nonsense, the default is used."""
    if retry_in is None:
        return default_retry_in

    def pause(retry_count: int) -> float:
        try:
            seconds = retry_in(retry_count)
            if isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds >= 0:
                return float(seconds)
            logger.error(
                "retry_in(%d) returned %r, no seconds from 0: the default is used", retry_count, seconds
            )
        except Exception:
            logger.exception("retry_in(%d) failed: the default is used", retry_count)
        return default_retry_in(retry_count)

    return pause
