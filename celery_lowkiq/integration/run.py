"""One run of a task function on a batch: what it gets, and what becomes of each job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

from celery.exceptions import Ignore, MaxRetriesExceededError, Retry

from celery_lowkiq.rules.errors import LowkiqError, UndecodablePayload
from celery_lowkiq.rules.models import BadPayload, Batch, Fate, Flag, Job, Verdict
from celery_lowkiq.rules.retry import RetryPolicy, after_failure

from .call_records import CallNote
from .codec import MARK, Codec
from .endings import Ending, giving, raising
from .errors import dump_error, dump_error_text, load_error
from .results import ById, JobsFailed
from .settings import Settings
from .tracked import TrackedCalls

logger = logging.getLogger("celery_lowkiq")

#: Seconds before a job whose run raised Reject(requeue=True) may run again.
REQUEUE_PAUSE = 1.0
#: Payloads of a job that have so many bytes together are shown whole.
SMALL = 256
NOTHING: dict[str, Collection[int]] = {}


class PoisonPill(LowkiqError):
    """A payload is in the morgue, since it took its worker down too often."""


class Rejected(LowkiqError):
    """The task raised Reject: its payloads are in the morgue."""


class RunJob(NamedTuple):
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


class RunInfo(NamedTuple):
    """``self.request.lowkiq``: where the batch comes from."""

    queue: str
    shard: int
    #: The epoch of the shard's lease; it only grows, so that a database can refuse an older one.
    fence: int
    jobs: tuple[RunJob, ...]
    #: ``lease_lost.is_set()`` while another worker may have the shard: Redis was silent for too long.
    lease_lost: Flag


#: Positions of payloads by the id of their job.
Positions = Mapping[str, Collection[int]]


def decode(
    batch: Batch, codec: Codec, settings: Settings, dropped: Positions
) -> tuple[tuple[RunJob, ...], dict[str, tuple[BadPayload, ...]]]:
    """The jobs with what can be read of their payloads, and by id what cannot, or is dropped."""
    jobs, bad = [], {}
    for job in batch.jobs:
        payloads, scores, bad[job.id] = _decoded(job, codec, settings, dropped.get(job.id, ()))
        if payloads:
            error = None if job.error is None else load_error(settings, job.error)
            jobs.append(RunJob(job.id, payloads, scores, job.retry_count, job.perform_in, error))
    return tuple(jobs), bad


def _decoded(
    job: Job, codec: Codec, settings: Settings, dropped: Collection[int]
) -> tuple[tuple[Any, ...], tuple[float, ...], tuple[BadPayload, ...]]:
    payloads, scores, bad = [], [], []
    for position, payload in enumerate(job.payloads):
        if position in dropped:
            bad.append(BadPayload(position, None))
            continue
        try:
            payloads.append(codec.load(payload.data))
            scores.append(payload.score)
        except UndecodablePayload as reason:
            logger.error("job %r: payload %d goes to the morgue: %s", job.id, position, reason)
            bad.append(BadPayload(position, dump_error_text(settings, f"undecodable payload: {reason}")))
    return tuple(payloads), tuple(scores), tuple(bad)


class Run:
    """Collects the verdicts of a batch. All jobs are done unless something says otherwise."""

    def __init__(
        self,
        batch: Batch,
        policy: RetryPolicy,
        codec: Codec,
        settings: Settings,
        dropped: Positions = NOTHING,
    ) -> None:
        """``dropped``: payloads that nobody waits for any more."""
        self.batch = batch
        self.jobs, self._bad = decode(batch, codec, settings, dropped)
        #: The call under whose id and headers it runs; None for a run with an id of its own.
        self.call: CallNote | None = None
        #: The calls of a run of several, where any has a record.
        self.callers: Callable[[], Iterable[CallNote]] | None = None
        #: Who tells the trackers of its calls; None where no call has a record.
        self.tracked: TrackedCalls | None = None
        #: Whether the verdicts are known; what fails around the function later does not change them.
        self.decided = False
        #: Replaces the call whose request is the task's current one.
        self.replacement: Callable[[], Any] | None = None
        self.middlewares = settings.server_middlewares
        self._policy = policy
        self._settings = settings
        self._result: Any = None
        self._ignored: Ignore | None = None
        self._errors: dict[str, Exception] = {}
        self._texts: dict[str, str | None] = {}
        self.verdicts = tuple(self._done(job) for job in batch.jobs)

    @property
    def info(self) -> RunInfo:
        lease = self.batch.lease
        return RunInfo(lease.shard.queue, lease.shard.index, lease.epoch, self.jobs, self.batch.lost)

    @property
    def small(self) -> bool:
        """Whether the payloads of each job are plain data of which a text is made at once."""
        for job in self.batch.jobs:
            size = 0
            for payload in job.payloads:
                size += len(payload.data)
                if size > SMALL or payload.data.startswith(MARK):
                    return False
        return True

    @property
    def payloads_by_id(self) -> dict[str, list[Any]]:
        """What the task function is called with."""
        return {job.id: list(job.payloads) for job in self.jobs}

    @property
    def retries(self) -> int:
        """Celery's word: how often the job that failed most was tried before."""
        return max((job.retry_count + 1 for job in self.jobs), default=0)

    def succeeds(self, result: Any) -> Any:
        """The function returned. Returns what Celery is to see."""
        self.decided = True
        self._result = result
        return self._value(self.jobs[0].id) if self.call is not None else result

    def ignores(self, error: Ignore) -> None:
        """The function raised Ignore: its jobs are done, and its calls get no result."""
        self._ignored = error

    def fails(self, error: Exception) -> Exception:
        """Decide about every job. Returns what Celery is to see: a Retry while any job of the batch runs
        again, else the error itself.
        """
        named = error.errors if isinstance(error, JobsFailed) else {}
        ids = {job.id for job in self.jobs}
        if not named or not named.keys() <= ids:
            named = dict.fromkeys(ids, error)
        self.decided = True
        self.verdicts = self._each(
            lambda job: self._failed(job, named[job.id]) if job.id in named else self._done(job)
        )
        delays = [verdict.delay for verdict in self.verdicts if verdict.fate is Fate.RETRY]
        seen = next(iter(self._errors.values())) if len(ids) == 1 else cause_of(error)
        if delays:
            return Retry(exc=seen, when=min(delays))  # type: ignore[arg-type]
        return MaxRetriesExceededError(str(seen)) if isinstance(seen, Retry) else seen

    def _failed(self, job: Job, failure: Exception) -> Verdict:
        error = cause_of(failure)
        delay = _seconds(failure) if isinstance(failure, Retry) else None
        policy = replace(self._policy, max_retries=getattr(failure, "max_retries", self._policy.max_retries))
        data = dump_error(self._settings, error)
        self._errors[job.id] = error
        self._texts[job.id] = load_error(self._settings, data)
        return after_failure(job, policy, data, delay, self._bad[job.id], error)

    def undelivered(self, job: Job, error: Exception) -> Verdict:
        """A job is done, but not all of its calls could be told: it runs again, and never dies of that."""
        policy = RetryPolicy(max_retries=None)
        return after_failure(job, policy, dump_error(self._settings, error), None, self._bad[job.id])

    def condemned(self) -> None:
        """Its payload took workers down too often: it must not run again."""
        self.decided = True
        data = self.batch.queue.poison_error
        self._errors = {job.id: PoisonPill(load_error(self._settings, data)) for job in self.jobs}
        self.verdicts = self._each(
            lambda job: Verdict(job.id, job.claim, Fate.BURY, error=data, bad=self._bad[job.id])
        )

    def returned(self) -> None:
        """Nothing ran: all jobs go back, and may run again after a while."""
        self.decided = True
        self.verdicts = tuple(
            Verdict(job.id, job.claim, Fate.RETURN, delay=REQUEUE_PAUSE) for job in self.batch.jobs
        )

    def rejected(self, error: Exception, requeue: bool) -> None:
        """The task raised Reject: back unchanged, or all payloads to the morgue."""
        data = dump_error_text(self._settings, f"Reject: {getattr(error, 'reason', error)}")
        self._errors = dict.fromkeys(
            (job.id for job in self.jobs), Rejected(str(getattr(error, "reason", error)))
        )
        # At its own time it would be the oldest job of the lane for ever, and the only one to run.
        fate, delay = (Fate.RETURN, REQUEUE_PAUSE) if requeue else (Fate.BURY, 0.0)
        self.verdicts = self._each(
            lambda job: Verdict(job.id, job.claim, fate, delay=delay, error=data, bad=self._bad[job.id])
        )

    def exhausted(self, accepted: frozenset[str]) -> list[RunJob]:
        """The jobs that died in this run, with the error that they died of."""
        dead = {verdict.id for verdict in self.verdicts if verdict.fate is Fate.DIE} & accepted
        return [job._replace(error=self._texts.get(job.id)) for job in self.jobs if job.id in dead]

    def ending(self, job: Job, position: int) -> Ending | None:
        """How the calls of a payload end; None when nothing has happened to them."""
        verdict, place = self._verdicts[job.id], self._places[job.id].get(position)
        if verdict.fate is Fate.RETURN:
            return None
        if place is None:
            texts = (bad.error for bad in self._bad[job.id] if bad.position == position)
            return Ending(True, raising(UndecodablePayload(load_error(self._settings, next(texts)) or "")))
        if verdict.fate is Fate.DONE:
            return Ending(True, self._success(job), success=True)
        error = self._errors[job.id]
        if verdict.fate is Fate.BURY or (verdict.fate is Fate.DIE and place == 0):
            dead = MaxRetriesExceededError(str(error)) if isinstance(error, Retry) else error
            return Ending(True, raising(dead))
        pause = verdict.delay if verdict.fate is Fate.RETRY else 0.0
        return Ending(False, raising(Retry(exc=error, when=pause)))  # type: ignore[arg-type]

    def arguments(self, job: Job, position: int) -> tuple[Any, ...]:
        """What a call of the payload would have run with alone; no payload when it is bad."""
        place = self._places[job.id].get(position)
        return ({job.id: [] if place is None else [self._payloads[job.id][place]]},)

    @cached_property
    def _verdicts(self) -> dict[str, Verdict]:
        """Of the decided run."""
        return {verdict.id: verdict for verdict in self.verdicts}

    @cached_property
    def _payloads(self) -> dict[str, tuple[Any, ...]]:
        return {job.id: job.payloads for job in self.jobs}

    @cached_property
    def _places(self) -> dict[str, dict[int, int]]:
        """Positions in the claimed job as places among the payloads that ran, by id."""
        bad = {job_id: {payload.position for payload in found} for job_id, found in self._bad.items()}
        return {
            job.id: {
                position: place
                for place, position in enumerate(p for p in range(len(job.payloads)) if p not in bad[job.id])
            }
            for job in self.batch.jobs
        }

    def _success(self, job: Job) -> Callable[[], Any]:
        if self.replacement is not None:
            return self.replacement
        if self._ignored is not None:
            return raising(self._ignored)
        return giving(self._value(job.id))

    def _value(self, job_id: str) -> Any:
        return self._result.get(job_id) if isinstance(self._result, ById) else self._result

    def _done(self, job: Job) -> Verdict:
        return Verdict(job.id, job.claim, Fate.DONE, bad=self._bad[job.id])

    def _each(self, verdict: Callable[[Job], Verdict]) -> tuple[Verdict, ...]:
        """A verdict for each job that has run; one of which nothing could be read is done with."""
        ran = {job.id for job in self.jobs}
        return tuple(verdict(job) if job.id in ran else self._done(job) for job in self.batch.jobs)


def cause_of(error: Exception) -> Exception:
    """What a Retry was raised for, if it says so; else the error itself."""
    return error.exc if isinstance(error, Retry) and isinstance(error.exc, Exception) else error


def _seconds(retry: Retry) -> float | None:
    """Delay that ``self.retry`` asked for; our own ``retry`` turns an eta into seconds."""
    return float(retry.when) if isinstance(retry.when, Real) else None
