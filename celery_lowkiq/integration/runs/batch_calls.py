"""The calls of a batch: who was revoked before it, under whose id it runs, and how each of them ends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from celery.states import STARTED
from celery.worker import state

from celery_lowkiq.integration.app.codec import Codec
from celery_lowkiq.integration.app.safe_logging import careful_logger
from celery_lowkiq.integration.records.call_record import CallNote, store_state
from celery_lowkiq.integration.records.orphans import DROPPED, fail_unread, unread_text
from celery_lowkiq.rules.errors import StoreError, UndecodablePayload
from celery_lowkiq.rules.models import Batch, CallRecord, Fate, Job, Recorded, Verdict
from celery_lowkiq.rules.tracking import News
from celery_lowkiq.store.jobs.call_records import CallReader

from .request import call_request
from .run import REQUEUE_PAUSE, Run
from .tracing import report, traced
from .tracker_updates import TrackedCalls

logger = careful_logger("celery_lowkiq")


@dataclass(frozen=True)
class NotedCall:
    """A call of a claimed job: where its record lies, and what the record says."""

    record: CallRecord
    note: CallNote

    @property
    def payload(self) -> int:
        return self.record.payload


@dataclass
class _Untold:
    """Why calls of a job could not be told how they ended, if that is so."""

    error: Exception | None = None
    #: Whether one of them was to hear of a success.
    success: bool = False


class CallBook:
    """Reads the calls of a batch in bounded parts; what came with the claim is read once."""

    def __init__(
        self,
        batch: Batch,
        reader: CallReader,
        codec: Codec,
        task: Any,
        consumer: Any,
        tracked: TrackedCalls,
    ) -> None:
        self._batch = batch
        self._reader = reader
        self._codec = codec
        self._task = task
        self._consumer = consumer
        self._tracked = tracked
        #: The living calls of jobs that have few.
        self._known: dict[str, list[NotedCall]] = {}

    # -- before the run

    def admit(self, run: Run) -> dict[str, set[int]]:
        """Tell trackers of the calls that the run hands to the function, and end those that were revoked or
        have expired; the others have started. Returns the payloads of which no call is left, by id. Raises
        StoreError, and what a result backend raises.
        """
        recorded = [job for job in self._batch.jobs if job.recorded]
        for job in recorded:
            if job.calls is not None and job.calls.complete:
                (self._known[job.id],) = self._pages(job)
        self._begin(run, ((job, call) for job in recorded for call in self._known.get(job.id, ())))
        dropped = {job.id: self._admit_job(run, job) for job in recorded}
        self._start(call for job in recorded for call in self._known.get(job.id, ()))
        return {job_id: positions for job_id, positions in dropped.items() if positions}

    def _admit_job(self, run: Run, job: Job) -> set[int]:
        gone: set[int] = set()
        alive: set[int] = set()
        few = job.id in self._known
        for page in self._pages(job):
            if not few:
                self._begin(run, ((job, call) for call in page))
            revoked: list[NotedCall] = []
            living: list[NotedCall] = []
            news: list[News] = []
            for call in page:
                if reason := self._revoked(job, call):
                    revoked.append(call)
                    news += self._tracked.dropped(call.note, reason)
                else:
                    living.append(call)
            gone |= {call.payload for call in revoked}
            alive |= {call.payload for call in living}
            if few:
                self._known[job.id] = living
            else:
                self._start(living)
            if revoked:
                self._reader.end(self._batch.lease, [(c.record.key, c.record.key) for c in revoked], news)
        return {position for position in gone - alive if job.payloads[position].recorded is Recorded.ALL}

    def _begin(self, run: Run, calls: Iterable[tuple[Job, NotedCall]]) -> None:
        """Tell trackers. The calls of a cancelled one are revoked."""
        found = [(job, call.note, run.hands(job.id, call.payload)) for job, call in calls]
        state.revoked.update(self._tracked.begin(found))

    def _start(self, calls: Iterable[NotedCall]) -> None:
        """From now on their time to live cannot end them, also if the worker dies before the run ends."""
        started = [
            (call.record, note.dump(self._codec))
            for call in calls
            if (note := call.note.started()) is not None
        ]
        if started:
            self._reader.start(self._batch.lease, started)

    def _revoked(self, job: Job, call: NotedCall) -> str:
        """Ends a call that shall not run any more. Why it shall not; "" when it shall."""
        note = call.note.before_its_job_failed() if job.retry_count < 0 else call.note
        stamped = note.headers.get("stamped_headers") and state.revoked_stamps
        unwanted, known = call.payload < job.unwanted, note.id in state.revoked
        if not (unwanted or known or note.headers.get("expires") or stamped):
            return ""
        request = call_request(note, self._task, self._consumer, ({job.id: []},), job.retry_count + 1)
        if unwanted:
            request.dropped(DROPPED)
            return DROPPED
        if not request.revoked():
            return ""
        return "expired" if note.headers.get("expires") and not known else "revoked"

    def single(self, run: Run) -> CallNote | None:
        """The call that the run is of, when it is one call's."""
        if len(self._batch.jobs) != 1 or len(run.jobs) != 1 or len(run.jobs[0].payloads) != 1:
            return None
        (job,) = self._batch.jobs
        calls = self._known.get(job.id, ())
        if len(calls) != 1 or job.payloads[calls[0].payload].recorded is not Recorded.ALL:
            return None
        if not run.hands(job.id, calls[0].payload):
            return None
        return calls[0].note

    def begins(self, run: Run) -> None:
        """Tell the result backend, and who traces, of the calls of a run of several."""
        if run.call is not None:
            return
        run.callers = partial(self._notes, run)
        if self._task.track_started:
            report(self._started, run)

    def _started(self, run: Run) -> None:
        meta = {"pid": os.getpid(), "hostname": self._consumer.hostname}
        store_state(self._task, self._notes(run), STARTED, meta)

    def _notes(self, run: Run) -> Iterator[CallNote]:
        """Of the calls that the run is of, in bounded parts."""
        for job in self._batch.jobs:
            for page in self._pages(job):
                yield from (call.note for call in page if run.hands(job.id, call.payload))

    # -- after the run

    def end(self, run: Run, runtime: float, told: bool) -> tuple[Verdict, ...]:
        """Give each call its result, and say which records may go. ``told``: the run was its call's own."""
        verdicts = zip(self._batch.jobs, run.verdicts, strict=True)
        return tuple(
            self._end_job(run, job, verdict, runtime, told) if job.recorded else verdict
            for job, verdict in verdicts
        )

    def _end_job(self, run: Run, job: Job, verdict: Verdict, runtime: float, told: bool) -> Verdict:
        ended: list[tuple[bytes, bytes]] = []
        news: list[News] = []
        untold = _Untold()
        try:
            for page in self._pages(job):
                gone = [call for call in page if self._end_call(run, job, call, runtime, told, untold)]
                heard = [each for call in page for each in self._news(run, job, call, call in gone)]
                over = _runs(gone)
                if job.id in self._known:
                    ended += over
                    news += heard
                elif over or heard:
                    self._reader.end(self._batch.lease, over, heard)
        except StoreError as error:
            logger.warning("job %r runs again, since not all of its calls could be ended: %s", job.id, error)
            return Verdict(job.id, job.claim, Fate.RETURN, delay=REQUEUE_PAUSE)
        if untold.error is not None and untold.success:
            verdict = run.undelivered(job, untold.error)
        return verdict._replace(ended=tuple(ended), news=tuple(news))

    def _news(self, run: Run, job: Job, call: NotedCall, over: bool) -> Iterable[News]:
        if not call.note.tracker:
            return ()
        ending = run.ending(job, call.payload)
        if ending is None and not run.hands(job.id, call.payload):
            return ()
        return self._tracked.ended(job, call.note, ending, over)

    def _end_call(
        self, run: Run, job: Job, call: NotedCall, runtime: float, told: bool, untold: _Untold
    ) -> bool:
        """Whether nothing more will happen to the call."""
        ending = run.ending(job, call.payload)
        if ending is None:
            return False
        if not told:
            arguments, retries = run.arguments(job, call.payload), job.retry_count + 1
            request = call_request(call.note, self._task, self._consumer, arguments, retries, ending.give)
            try:
                traced(self._task, request, self._consumer, runtime)
            except Exception as error:
                if untold.error is None:
                    logger.exception("job %r: not all of its calls could be told how it ended", job.id)
                untold.error, untold.success = error, untold.success or ending.success
                return ending.final and not ending.success
        return ending.final

    # -- reading

    def _pages(self, job: Job) -> Iterator[list[NotedCall]]:
        if job.id in self._known:
            yield self._known[job.id]
            return
        for page in self._reader.pages(self._batch.shard, job):
            yield self._noted(job, page)

    def _noted(self, job: Job, records: Iterable[CallRecord]) -> list[NotedCall]:
        """The calls of a page. Those whose records cannot be read end here, when the batch is admitted, which
        reads all of them.
        """
        noted: list[NotedCall] = []
        unread: list[CallRecord] = []
        news: list[News] = []
        for record in records:
            try:
                noted.append(NotedCall(record, CallNote.load(record.data, self._codec)))
            except UndecodablePayload as reason:
                note = fail_unread(self._task, record, reason)
                news += self._tracked.dropped(note, unread_text(reason)) if note else []
                unread.append(record)
        if unread:
            self._reader.end(self._batch.lease, [(record.key, record.key) for record in unread], news)
        return noted


def _runs(calls: Iterable[NotedCall]) -> list[tuple[bytes, bytes]]:
    """First and last key of the calls of each payload: they lie side by side, and end together."""
    found = []
    for _, group in groupby(calls, key=lambda call: call.payload):
        keys = [call.record.key for call in group]
        found.append((keys[0], keys[-1]))
    return found
