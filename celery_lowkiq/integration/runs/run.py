"""One run of a task function on a batch: what it gets, and what becomes of each job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry

from celery_lowkiq.integration.app.codec import MARK, Codec
from celery_lowkiq.integration.app.error_text import (
    ErrorText,
    dump_error,
    dump_error_text,
    error_text,
    load_error,
)
from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.integration.records.call_record import CallNote
from celery_lowkiq.rules.errors import LowkiqError, UndecodablePayload
from celery_lowkiq.rules.models import BadPayload, Batch, Fate, Gone, Job, Verdict
from celery_lowkiq.rules.retry import RetryPolicy, after_failure
from celery_lowkiq.store.inspect.tries import try_text
from celery_lowkiq.worker.forks import staying

from .aborts import ENDS_WORKER, as_failure, raised_in
from .batch_results import ById
from .decode import NOTHING, Positions, RunInfo, RunJob, hand
from .endings import Ending, giving, raising
from .failure_log import Failure
from .outcomes import Again, BusinessFailure, Part, cause_of, delay_of, meant, names_jobs, outcomes
from .tracker_updates import TrackedCalls

#: Seconds before a job whose run raised Reject(requeue=True) may run again.
REQUEUE_PAUSE = 1.0
#: Payloads of a job that have so many bytes together are shown whole.
SMALL = 256
#: Seconds before what is left of a job runs again at once: at its own time it would be the oldest job of the
#: lane for ever, and the only one to run.
AT_ONCE = 1e-6


class PoisonPill(LowkiqError):
    """A payload is in the morgue, since it took its worker down too often."""


class Rejected(LowkiqError):
    """The task raised Reject: its payloads are in the morgue."""


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
        self._handed = {job.id: hand(job, codec, settings, dropped.get(job.id, ())) for job in batch.jobs}
        self.jobs = tuple(handed.job for handed in self._handed.values() if handed.job is not None)
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
        #: The id under which Celery knows it; "" until it is handed to Celery.
        self.task_id = ""
        self._policy = policy
        self._settings = settings
        #: Of the process that it began in.
        self.pid = os.getpid()
        self._dump = codec.dump
        self._result: Any = None
        #: Raised by the function: its jobs are done, and its calls get no result.
        self._ignored: Ignore | None = None
        self._errors: dict[str, Exception] = {}
        #: What is kept of the errors of jobs that failed, by id.
        self._texts: dict[str, ErrorText] = {}
        #: The same, by the id of the error's object.
        self._kept: dict[int, ErrorText] = {}
        self._raising: dict[int, raising] = {}
        #: What Celery was shown of a failure.
        self._seen: Exception | None = None
        #: How many jobs failed together in a run that failed as a whole; 0 when each failed by its own error.
        self._together = 0
        #: Jobs that raised Again.
        self._parts: dict[str, Part] = {}
        #: Positions that stay for a later run, by id, of jobs that have some.
        self._left: dict[str, Collection[int]] = {}
        #: What was decided of the payloads that are not left, by id; nothing yet: they are done.
        self._decided: dict[str, Verdict] = {}
        self.verdicts = tuple([self._done(job) for job in batch.jobs])

    @property
    def middlewares(self) -> Sequence[Any]:
        """``lowkiq_server_middlewares``."""
        return self._settings.server_middlewares

    @property
    def log_failures(self) -> str:
        """Which failures are logged with their traceback: ``lowkiq_log_failures``."""
        return self._settings.log_failures

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

    def hands(self, job_id: str, position: int) -> bool:
        """Whether a payload of a claimed job is among those that the function gets."""
        return position in self._places[job_id]

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

    def fails(self, error: Exception) -> Exception | None:
        """Decide about every job. Returns what Celery is to see: a Retry while any job of the batch runs
        again, else the error itself; None when all of them are done.
        """
        try:
            seen = self._decide(error)
        except Exception as refused:  # noqa: BLE001 - what it says cannot be kept, or it cannot be looked at
            seen = self._decide(refused)
        self.decided, self._seen = True, seen
        return seen

    def watched(self, function: Callable[[], Any]) -> Any:
        """What a part of the run returns, or raises as Celery is to see it: what it raises is decided about,
        unless that was done.
        """
        try:
            return staying(self.pid, function)
        except Ignore as error:
            self._ignored = error
            raise
        except (Reject, *ENDS_WORKER):
            raise
        except BaseException as raised:
            failure = as_failure(raised)
            if failure is self._seen:
                raise
            seen = self.fails(failure)
            if seen is None:
                return self.value()
            if seen is raised:
                raise
            raise seen from (raised if seen is failure else cause_of(failure))

    def _decide(self, error: Exception) -> Exception | None:
        self._forget()
        self._together = 0 if names_jobs(error, self.jobs) else len(self.jobs)
        found = outcomes(error, self.jobs, self._dump)
        self._each(lambda job: self._outcome(job, found.get(job.id)))
        return self._told(error)

    def _told(self, error: Exception) -> Exception | None:
        delays = [_pause(verdict) for verdict in self.verdicts if verdict.fate is Fate.RETRY]
        delays += [part.again.after for part in self._parts.values() if part.left]
        if not delays and not self._errors:
            return None
        single = len(self.jobs) == 1 and self._errors
        seen = next(iter(self._errors.values())) if single else cause_of(meant(error))
        if isinstance(seen, Again):
            seen = Retry(str(seen))
        if delays:
            return Retry(exc=seen, when=min(delays))  # type: ignore[arg-type]
        if all(isinstance(one, BusinessFailure) for one in self._errors.values()):
            return seen if isinstance(seen, BusinessFailure) else BusinessFailure(str(seen))
        return MaxRetriesExceededError(str(seen)) if isinstance(seen, Retry) else seen

    @property
    def has_callers(self) -> bool:
        """Whether it is of several calls, any of which has a record."""
        return self.callers is not None and next(iter(self.callers()), None) is not None

    def value(self) -> Any:
        """What Celery is to see of a run that raised, when all of its jobs are done."""
        return self._value(self.jobs[0].id) if self.call is not None else None

    def _forget(self) -> None:
        """What was decided so far."""
        self._ignored = None
        for decided in (self._errors, self._texts, self._kept, self._parts, self._left, self._decided):
            decided.clear()

    def _outcome(self, job: Job, outcome: Exception | Part | None) -> Verdict:
        handed = self._handed[job.id]
        positions = handed.positions(job)
        if isinstance(outcome, Part):
            self._parts[job.id] = outcome
            self._left[job.id] = {positions[place] for place in outcome.left}
            return self._done(job)._replace(delay=outcome.again.after)
        if isinstance(outcome, BusinessFailure):
            self._errors[job.id] = outcome
            over = (BadPayload(position, None, Gone.OVER) for position in positions)
            return Verdict(job.id, job.claim, Fate.BURY, bad=(*handed.bad, *over))
        return self._done(job) if outcome is None else self._failed(job, outcome)

    def _failed(self, job: Job, failure: Exception) -> Verdict:
        error = cause_of(failure)
        raised = raised_in(error)
        delay, policy = None, self._policy
        if isinstance(failure, Retry):
            delay = delay_of(failure)
            policy = replace(policy, max_retries=getattr(failure, "max_retries", policy.max_retries))
        text = self._text(raised)
        self._errors[job.id], self._texts[job.id] = error, text
        bad = self._handed[job.id].bad
        verdict = after_failure(job, policy, text.data, delay, bad, raised, self._together)
        return verdict._replace(try_text=try_text(text.text))

    def _text(self, error: BaseException) -> ErrorText:
        """Made once of an error that many jobs of a batch failed by."""
        if id(error) not in self._kept:
            self._kept[id(error)] = error_text(self._settings, error)
        return self._kept[id(error)]

    @property
    def has_failed(self) -> bool:
        """Whether any job of it did."""
        return bool(self._texts)

    @property
    def failures(self) -> list[Failure]:
        """The jobs that failed, in the order of the batch."""
        return [
            Failure(job, verdict, self._errors[job.id], self._texts[job.id])
            for job, verdict in zip(self.batch.jobs, self.verdicts, strict=True)
            if job.id in self._texts
        ]

    def undelivered(self, job: Job, error: Exception) -> Verdict:
        """A job is done, but not all of its calls could be told: it runs again, and never dies of that."""
        policy = RetryPolicy(max_retries=None)
        return after_failure(job, policy, dump_error(self._settings, error), None, self._handed[job.id].bad)

    def condemned(self) -> None:
        """Its payload took workers down too often: it must not run again."""
        self.decided = True
        data = self.batch.queue.poison_error
        text = load_error(self._settings, data) or ""
        self._errors = {job.id: PoisonPill(text) for job in self.jobs}
        self._texts = dict.fromkeys(self._errors, ErrorText(data, text, text))
        self._each(lambda job: self._done(job)._replace(fate=Fate.BURY, error=data))

    def returned(self) -> None:
        """Nothing ran: all jobs go back, and may run again after a while."""
        self.decided = True
        jobs = self.batch.jobs
        self.verdicts = tuple(Verdict(job.id, job.claim, Fate.RETURN, delay=REQUEUE_PAUSE) for job in jobs)

    def rejected(self, error: Exception, requeue: bool) -> None:
        """The task raised Reject: back unchanged, or all payloads to the morgue."""
        data = dump_error_text(self._settings, f"Reject: {getattr(error, 'reason', error)}")
        self._errors = dict.fromkeys(
            (job.id for job in self.jobs), Rejected(str(getattr(error, "reason", error)))
        )
        fate, delay = (Fate.RETURN, REQUEUE_PAUSE) if requeue else (Fate.BURY, 0.0)
        self._each(lambda job: self._done(job)._replace(fate=fate, delay=delay, error=data))

    def exhausted(self, accepted: frozenset[str]) -> list[RunJob]:
        """What died in this run: of each job the payload with the smallest score, its error and count."""
        deaths = {verdict.id: verdict for verdict in self.verdicts if verdict.fate is Fate.DIE}
        return [
            job._replace(
                payloads=job.payloads[:1],
                scores=job.scores[:1],
                retry_count=deaths[job.id].retry_count,
                error=self._texts[job.id].text,
            )
            for job in self.jobs
            if job.id in deaths and job.id in accepted
        ]

    def ending(self, job: Job, position: int) -> Ending | None:
        """How the calls of a payload end; None when nothing has happened to them."""
        verdict, place = self._decided.get(job.id) or self._done(job), self._places[job.id].get(position)
        if verdict.fate is Fate.RETURN or position in self._left.get(job.id, ()):
            return None
        if place is None:
            texts = (bad.error for bad in self._handed[job.id].bad if bad.position == position)
            return Ending(True, raising(UndecodablePayload(load_error(self._settings, next(texts)) or "")))
        if verdict.fate is Fate.DONE:
            return Ending(True, self._success(job), success=True)
        error = self._errors[job.id]
        if verdict.fate is Fate.BURY or (verdict.fate is Fate.DIE and place == 0):
            dead = MaxRetriesExceededError(str(error)) if isinstance(error, Retry) else error
            return Ending(True, self._raises(dead))
        pause = _pause(verdict) if verdict.fate is Fate.RETRY else 0.0
        return Ending(False, raising(Retry(exc=error, when=pause)))  # type: ignore[arg-type]

    def arguments(self, job: Job, position: int) -> tuple[Any, ...]:
        """What a call of the payload would have run with alone; no payload when it is bad."""
        place = self._places[job.id].get(position)
        return ({job.id: [] if place is None else [self._payloads[job.id][place]]},)

    @cached_property
    def _payloads(self) -> dict[str, tuple[Any, ...]]:
        return {job.id: job.payloads for job in self.jobs}

    @cached_property
    def _places(self) -> dict[str, dict[int, int]]:
        """Positions in the claimed job as places among the payloads that ran, by id."""
        return {
            job.id: {p: place for place, p in enumerate(self._handed[job.id].positions(job))}
            for job in self.batch.jobs
        }

    def _success(self, job: Job) -> Callable[[], Any]:
        if self.replacement is not None:
            return self.replacement
        if self._ignored is not None:
            return self._raises(self._ignored)
        return giving(self._value(job.id))

    def _raises(self, error: Exception) -> raising:
        """One for all calls that end so: each raise lengthens the traceback that a new one would take."""
        if id(error) not in self._raising:
            self._raising[id(error)] = raising(error)
        return self._raising[id(error)]

    def _value(self, job_id: str) -> Any:
        if job_id in self._parts:
            return self._parts[job_id].again.result
        return self._result.get(job_id) if isinstance(self._result, ById) else self._result

    def _done(self, job: Job) -> Verdict:
        return Verdict(job.id, job.claim, Fate.DONE, bad=self._handed[job.id].bad)

    def _each(self, verdict: Callable[[Job], Verdict]) -> None:
        """Decide about each job that has run; one of which nothing could be read is done with."""
        for job in self.batch.jobs:
            ran = self._handed[job.id].job is not None
            self._decided[job.id] = verdict(job) if ran else self._done(job)
        self.verdicts = tuple(map(self._keep, self.batch.jobs, self._decided.values()))

    def _keep(self, job: Job, verdict: Verdict) -> Verdict:
        """What is left of a job stays queued, whatever became of the rest of its payloads."""
        left = self._left.get(job.id)
        if not left or verdict.fate not in (Fate.DONE, Fate.BURY):
            return verdict
        gone = {*left, *(bad.position for bad in verdict.bad)}
        error = verdict.error if verdict.fate is Fate.BURY else None
        over = (BadPayload(p, error, Gone.DONE) for p in self._handed[job.id].positions(job) if p not in gone)
        delay = max(verdict.delay, AT_ONCE)
        return Verdict(job.id, job.claim, Fate.RETURN, delay=delay, bad=(*verdict.bad, *over))


def _pause(verdict: Verdict) -> float:
    """Seconds until a job that failed runs again."""
    return max(0.0, verdict.perform_in - time.time()) if verdict.perform_in else verdict.delay
