"""The calls of a claimed batch: reads their records, and ends those that must not run any more."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from celery.states import STARTED
from celery.worker import state

from celery_lowkiq.integration.records.call_record import CallRecord, store_state
from celery_lowkiq.integration.records.orphans import DROPPED, SUPERSEDED, end_of_call, fail_unread
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import Batch, Job, Recorded, StoredRecord
from celery_lowkiq.rules.tracking import TrackerUpdate
from celery_lowkiq.store.jobs.call_records import CallReader

from .decisions import RunRules
from .decode import DecodedBatch
from .request import LaneRequest, call_request
from .tracing import report
from .tracker_updates import TrackedCalls


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

        ``terminated``: end all, since ``revoke(terminate=True)`` has sent this signal to their run.

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
            return call_request(record, self.task, self.consumer, {job.id: []}, job.retry_count + 1).full()
        except Exception:
            logger.exception("call %s of %s runs, since it cannot be revoked", record.id, self.task.name)
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
        """Whether all calls of the job came with the claim; else they are read and ended page by page."""
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
