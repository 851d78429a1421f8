"""Recorded calls: each call of a job gets its result; calls that must not run end before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from celery.states import STARTED
from celery.worker import state
from kombu.exceptions import SerializationError

from celery_lowkiq.integration.decisions import (
    RETURN_DELAY,
    CallOutcome,
    RunAborted,
    RunRules,
    as_failure,
    retry_for_results,
)
from celery_lowkiq.integration.decode import DecodedBatch
from celery_lowkiq.integration.function_adapters import RunRevoked
from celery_lowkiq.integration.records import (
    DROPPED,
    SUPERSEDED,
    CallRecord,
    end_of_call,
    fail,
    fail_unread,
    store_state,
)
from celery_lowkiq.integration.request import CallRequest, LaneRequest
from celery_lowkiq.integration.run import ReportingFailed, Run, TrackedCalls, report, traced
from celery_lowkiq.integration.safe_logging import safe_logger
from celery_lowkiq.rules.basics import package_logger
from celery_lowkiq.rules.errors import StoreError, UndecodablePayload
from celery_lowkiq.rules.models import Batch, Disposition, Job, Recorded, Settlement, StoredRecord
from celery_lowkiq.rules.tracking import TrackerUpdate
from celery_lowkiq.store.call_records import CallReader

# The calls of a claimed batch: reads their records, and ends those that must not run any more.


class StoredCall(NamedTuple):
    """A call of a claimed job: its record as stored, and decoded."""

    stored: StoredRecord
    record: CallRecord

    @property
    def position(self) -> int:
        """Position of its payload in the job."""
        return self.stored.payload


class BatchCalls:
    """The calls of a batch, read in bounded parts. Those that came with the claim are read once."""

    def __init__(
        self, batch: Batch, rules: RunRules, reader: CallReader, consumer: Any, tracked: TrackedCalls
    ) -> None:
        self.task: Any = rules.task
        self.consumer = consumer
        self.tracked = tracked
        self._batch = batch
        self._reader = reader
        self._rules = rules
        self._terminated = 0
        #: The living calls of jobs that have few.
        self._few: dict[str, list[StoredCall]] = {}

    # -- before the run

    def admit(self, decoded: DecodedBatch, terminated: int = 0) -> dict[str, set[int]]:
        """Announce the calls of a batch that is about to run, and end those that are revoked or expired.

        ``terminated``: end all, because ``revoke(terminate=True)`` has sent this signal to their run.

        Returns the positions of payloads without a living call, by id of their job. Raises StoreError, and
        the errors of a result backend.
        """
        self._terminated = terminated
        recorded = self.take()
        self._announce(decoded, ((job, call) for job in recorded for call in self._few.get(job.id, ())))
        dropped = {job.id: self._admit_job(decoded, job) for job in recorded}
        self._start(call for job in recorded for call in self._few.get(job.id, ()))
        return {job_id: positions for job_id, positions in dropped.items() if positions}

    def take(self) -> list[Job]:
        """Read the calls that came with the claim. Returns the jobs of all calls. Raises StoreError."""
        recorded = [job for job in self._batch.jobs if job.recorded]
        for job in recorded:
            if job.calls is not None and job.calls.complete:
                (self._few[job.id],) = self.pages(job)
        return recorded

    def _admit_job(self, decoded: DecodedBatch, job: Job) -> set[int]:
        gone: set[int] = set()
        alive: set[int] = set()
        few = self.are_few(job)
        for page in self.pages(job):
            if not few:
                self._announce(decoded, ((job, call) for call in page))
            reasons = [(call, self._revoked(job, call)) for call in page]
            living = [call for call, reason in reasons if not reason]
            revoked = [(call, reason) for call, reason in reasons if reason]
            gone.update(call.position for call, _ in revoked)
            alive.update(call.position for call in living)
            if few:
                self._few[job.id] = living
            else:
                self._start(living)
            if revoked:
                news = [n for call, reason in revoked for n in end_of_call(call.record, reason)]
                self.end([(call.stored.key, call.stored.key) for call, _ in revoked], news)
        return {position for position in gone - alive if job.payloads[position].recorded is Recorded.ALL}

    def _announce(self, decoded: DecodedBatch, calls: Iterable[tuple[Job, StoredCall]]) -> None:
        found = [(job, call.record, decoded.includes(job.id, call.position)) for job, call in calls]
        state.revoked.update(self.tracked.begin(found))

    def _start(self, calls: Iterable[StoredCall]) -> None:
        """End the time to live of calls that run, also for a later run after a crash of this one."""
        gate = self._rules.gate
        started = [
            (call.stored, self._rules.dump_record(call.stored, record, gate.is_signed_record(call.stored)))
            for call in calls
            if (record := call.record.started()) is not None
        ]
        if started:
            self._reader.start(self._batch.lease, started)

    def _revoked(self, job: Job, call: StoredCall) -> str:
        """End a call that must not run. Returns why it must not; "" when it may."""
        record = call.record.before_its_job_failed() if job.retry_count < 0 else call.record
        stamped = record.headers.get("stamped_headers") and state.revoked_stamps
        unwanted, is_revoked = call.position < job.unwanted, record.id in state.revoked
        if not (unwanted or is_revoked or record.headers.get("expires") or stamped or self._terminated):
            return ""
        request = self._request(record, job)
        if request is None:
            return ""
        if self._terminated:
            request.terminated(self._terminated)
            return "terminated"
        if unwanted:
            reason = SUPERSEDED if self.task.latest else DROPPED
            request.dropped(reason)
            return reason
        if not request.revoked():
            return ""
        return "expired" if record.headers.get("expires") and not is_revoked else "revoked"

    def _request(self, record: CallRecord, job: Job) -> LaneRequest | None:
        """The request of a call; None when it cannot be built, which its run reports."""
        try:
            return CallRequest(record, self.task, self.consumer, {job.id: []}, job.retry_count + 1).full()
        except Exception:
            package_logger.exception(
                "call %s of %s runs, because it cannot be revoked", record.id, self.task.name
            )
            return None

    def single(self, decoded: DecodedBatch) -> CallRecord | None:
        """The call of a batch that has only one: the run then has its id."""
        if len(self._batch.jobs) != 1 or len(decoded.jobs) != 1 or len(decoded.jobs[0].payloads) != 1:
            return None
        (job,) = self._batch.jobs
        calls = self._few.get(job.id, ())
        if len(calls) != 1 or job.payloads[calls[0].position].recorded is not Recorded.ALL:
            return None
        return calls[0].record if decoded.includes(job.id, calls[0].position) else None

    def running(self, decoded: DecodedBatch) -> Iterator[CallRecord]:
        """The calls that run, in bounded parts."""
        for job in self._batch.jobs:
            for page in self.pages(job):
                yield from (call.record for call in page if decoded.includes(job.id, call.position))

    def report_started(self, decoded: DecodedBatch) -> None:
        """Give the calls that run the state STARTED, for a task with ``track_started``."""
        if self.task.track_started:
            meta = {"pid": os.getpid(), "hostname": self.consumer.hostname}
            report(lambda: store_state(self.task, self.running(decoded), STARTED, meta))

    # -- records

    def are_few(self, job: Job) -> bool:
        """True if all calls of the job came with the claim; else they are read and ended page by page."""
        return job.id in self._few

    def pages(self, job: Job) -> Iterator[list[StoredCall]]:
        """The living calls of a job. Raises StoreError."""
        if job.id in self._few:
            yield self._few[job.id]
            return
        for page in self._reader.pages(self._batch.shard, job):
            yield self._read(page)

    def end(self, keys: Sequence[tuple[bytes, bytes]], news: Sequence[TrackerUpdate]) -> None:
        """Delete records, named by first and last key of a range, and update trackers. Raises StoreError."""
        self._reader.end(self._batch.lease, keys, news)

    def _read(self, records: Iterable[StoredRecord]) -> list[StoredCall]:
        # Unreadable records are gone once the batch is admitted.
        readable: list[StoredCall] = []
        unread: list[StoredRecord] = []
        news: list[TrackerUpdate] = []
        for stored in records:
            try:
                readable.append(StoredCall(stored, self._rules.read_record(stored)))
            except UndecodablePayload as reason:
                news += fail_unread(self.task, stored, reason)
                unread.append(stored)
        if unread:
            self.end([(stored.key, stored.key) for stored in unread], news)
        return readable


# Finishes the calls of a run: results, links, signals, events, trackers.
#
# Each call is played through Celery's tracer under its own id. So its result, links, chord part, signals and
# events are Celery's, in each version of Celery.

#: Errors that links with wrong parts raise at each try. Errors of servers, which pass, have other classes.
UNSENDABLE = (TypeError, ValueError, LookupError, AttributeError, RecursionError, SerializationError)


@dataclass
class _Finished:
    """Ended calls of a job, and the error that kept others from their ends."""

    #: First and last key of ranges of records that are not needed any more.
    ended: list[tuple[bytes, bytes]] = field(default_factory=list)
    news: list[TrackerUpdate] = field(default_factory=list)
    #: The last error that kept calls from their results.
    error: Exception | None = None
    #: True if any of these calls has succeeded.
    success: bool = False


class CallFinisher:
    """Finishes the calls of a run, before its batch is settled."""

    def __init__(self, run: Run, calls: BatchCalls, runtime: float, has_reported: bool) -> None:
        """``runtime`` in s. ``has_reported``: the run was its only call's own, and Celery has reported it."""
        self._run = run
        self._calls = calls
        self._runtime = runtime
        self._has_reported = has_reported
        self._raisers: dict[int, _Raiser] = {}

    def finish(self) -> tuple[Settlement, ...]:
        """Give each call its result. Returns the settlements, with records and news of ended calls."""
        return tuple(
            self._finish_job(job, settlement) if job.recorded else settlement
            for job, settlement in zip(self._run.batch.jobs, self._run.decision.settlements, strict=True)
        )

    def _finish_job(self, job: Job, settlement: Settlement) -> Settlement:
        finished = _Finished()
        few = self._calls.are_few(job)
        try:
            for page in self._calls.pages(job):
                self._finish_page(job, page, finished)
                if not few and (finished.ended or finished.news):
                    self._calls.end(finished.ended, finished.news)
                    finished.ended, finished.news = [], []
        except StoreError as error:
            safe_logger.warning(
                "job %r runs again, because not all of its calls could be ended: %s", job.id, error
            )
            return Settlement(job.id, job.claim, Disposition.RETURN, delay=RETURN_DELAY)
        if finished.error is not None and finished.success:
            decoded = self._run.decoded.jobs_by_id[job.id]
            settlement = retry_for_results(decoded, finished.error, self._run.settings)
        return settlement._replace(ended=tuple(finished.ended), news=tuple(finished.news))

    def _finish_page(self, job: Job, page: Iterable[StoredCall], finished: _Finished) -> None:
        keys: list[tuple[int, bool, bytes]] = []
        for call in page:
            outcome = self._run.outcome_of(job.id, call.position)
            over = outcome is not None and self._finish_call(job, call, outcome, finished)
            keys.append((call.position, over, call.stored.key))
            included = outcome is not None or self._run.decoded.includes(job.id, call.position)
            if included and call.record.tracker:
                secrets = self._run.secrets if outcome is not None and outcome.error is not None else ()
                finished.news += self._calls.tracked.ended(job, call.record, outcome, over, secrets)
        # A payload's records lie side by side. A range must not include that of a call which is not over.
        for (_, over), group in groupby(keys, key=itemgetter(0, 1)):
            if over:
                part = [key for _, _, key in group]
                finished.ended.append((part[0], part[-1]))

    def _finish_call(self, job: Job, call: StoredCall, outcome: CallOutcome, finished: _Finished) -> bool:
        """True if nothing more will happen to the call."""
        if self._has_reported:
            return outcome.final
        payloads, retries = self._run.decoded.payloads_of(job.id, call.position), job.retry_count + 1
        task, consumer = self._calls.task, self._calls.consumer
        try:
            if isinstance(outcome.error, RunRevoked):
                report(CallRequest(call.record, task, consumer, payloads, retries).full().terminated)
                return True
            play = self._play(outcome)
            made = CallRequest(call.record, task, consumer, payloads, retries, play)
            request = made.form(self._run.observed)
        except Exception as error:  # noqa: BLE001 - also what a property of the request raises
            return self._fail_broken(
                replace(call.record, headers={}), "no request can be built for it", error
            )
        try:
            self._trace(call, outcome, request)
        except Exception as error:
            if outcome.success and call.record.embed and isinstance(_cause_of(error), UNSENDABLE):
                return self._fail_broken(call.record, "its links cannot be sent", error)
            if finished.error is None:
                safe_logger.exception("job %r: some call results could not be written", job.id)
            finished.error = error
            finished.success = finished.success or outcome.success
            return outcome.final and not outcome.success
        return outcome.final

    def _fail_broken(self, record: CallRecord, why: str, error: Exception) -> bool:
        """End a call that no later run could finish either. Returns True."""
        safe_logger.exception("call %s ends as FAILURE, because %s", record.id, why)
        report(fail, self._calls.task, replace(record, embed={}), _cause_of(error))
        return True

    def _trace(self, call: StoredCall, outcome: CallOutcome, request: Any) -> None:
        """Play the call. If a receiver of a signal raises what is no Exception, a failure is stored without
        Celery's tracer, which would never end it.
        """
        try:
            traced(self._calls.task, request, self._runtime)
        except RunAborted as aborted:
            if not outcome.final or outcome.success:
                raise
            safe_logger.error("call %s ends outside of Celery's tracer: %s", call.record.id, aborted)
            fail(self._calls.task, call.record, as_failure(outcome.error or aborted))

    def _play(self, outcome: CallOutcome) -> Callable[[], Any]:
        if outcome.error is None:
            return outcome.give
        if not outcome.final:
            return _Raiser(outcome.error)
        return self._raisers.setdefault(id(outcome.error), _Raiser(outcome.error))


def _cause_of(error: Exception) -> Exception:
    """The exception that made Celery's tracer fail."""
    cause = error.__cause__
    return cause if isinstance(error, ReportingFailed) and isinstance(cause, Exception) else error


class _Raiser:
    """Raises an error, for many calls. Each raise would lengthen its traceback."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._traceback = error.__traceback__

    def __call__(self) -> NoReturn:
        raise self._error.with_traceback(self._traceback)
