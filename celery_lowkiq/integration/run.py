"""A run of a batch: its calls, its end, and its changes of calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.states import IGNORED

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.decisions import (
    ENDS_WORKER,
    BusinessFailure,
    ById,
    CallOutcome,
    Decision,
    JobsFailed,
    RunRules,
    as_failure,
    call_user_code,
    cause_of,
    decide_failure,
    decide_poison_pill,
    decide_rejection,
    forget_tracebacks,
    unwrap,
)
from celery_lowkiq.integration.decode import DecodedBatch, DecodedJob
from celery_lowkiq.integration.error_text import said
from celery_lowkiq.integration.messages import payload_secrets
from celery_lowkiq.integration.records import TTL_ENDS, CallRecord
from celery_lowkiq.integration.safe_logging import safe_logger
from celery_lowkiq.integration.settings import Settings
from celery_lowkiq.rules.basics import cached_property, package_logger
from celery_lowkiq.rules.errors import LowkiqError, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Batch, Job, Lease, PayloadChange, StoredRecord
from celery_lowkiq.rules.retry import is_exhausted
from celery_lowkiq.rules.signatures import binds_score
from celery_lowkiq.rules.text import format_job_ids
from celery_lowkiq.rules.tracking import State, TrackerUpdate, began, ended, waits
from celery_lowkiq.store.call_records import digest
from celery_lowkiq.store.records import id_bytes
from celery_lowkiq.store.trackers import TrackerStore
from celery_lowkiq.worker.forks import staying

# Runs a request through its task's tracer, with events and worker state.


class ReportingFailed(LowkiqError):
    """Celery's tracer failed itself: the result backend or the broker is unreachable, or a link is broken."""


def traced(task: Any, request: Any, runtime: float | None = None, has_begun: bool = False) -> Any:
    """Run the request. Returns the tracer's info: None for a success.

    ``runtime`` in s replaces the measured one in events. ``has_begun``: its beginning was reported. Raises
    ReportingFailed, or another Exception, when links or the result were not sent; Reject when ``on_success``
    does; and exceptions that end a worker.
    """
    if not has_begun:
        report(request.begins)
    try:
        # Read anew each time: a reconnect to the broker rebuilds it.
        result, info, measured, text = call_user_code(
            lambda: task.__trace__(request.id, request.args, request.kwargs, request.request_dict)
        )
    except BaseException:
        report(request.ends)
        raise
    if info is None and measured is None:
        report(request.ends)
        if result is None:
            raise ReportingFailed("the tracer gave up")
        # Celery wraps the exception for pickle.
        cause = getattr(result.exception, "exc", result.exception)
        raise ReportingFailed(f"{result.exception!r}") from cause
    took = measured if runtime is None else runtime
    if info is None:
        report(request.on_success, (0, text, took))
    elif info.state == IGNORED:
        report(request.ends)
    else:
        report(request.on_success, (1, result, took))
    return info


def report(send: Callable[..., Any], *about: Any) -> None:
    """Call ``send``, and log an error in it: reporting must not change what becomes of a job."""
    try:
        send(*about)
    except Exception:
        safe_logger.exception("a run could not be reported")


# Reports to trackers what becomes of the calls of a batch.

#: Maximum number of calls of a batch to which its progress is reported.
MOST_RUNNING = 1000
#: Minimum interval in s between two reports of progress without a text.
PROGRESS_INTERVAL = 0.1


class TrackedCalls:
    """The tracked calls of one batch, in its lane's thread. Calls without a tracker cost nothing here."""

    def __init__(self, lease: Lease, tracker_store: TrackerStore, settings: Settings) -> None:
        self._lease = lease
        self._tracker_store = tracker_store
        self._settings = settings
        #: The report of each run that began, with the id of its job.
        self._running: list[tuple[str, TrackerUpdate]] = []
        self._progressed_at = -PROGRESS_INTERVAL

    def begin(self, calls: Iterable[tuple[Job, CallRecord, bool]]) -> set[str]:
        """Report the beginning of a run. ``calls``: each with its job, and whether it is part of the run.

        Returns the ids of all calls whose tracker is cancelled: they must not run. Raises StoreUnavailable.
        """
        tracked = [(job, record, included) for job, record, included in calls if record.tracker]
        begin = [(job.id, self._began(job, record)) for job, record, included in tracked if included]
        running_in = {news.tracker for _, news in begin}
        rest = {record.tracker: record.id for _, record, _ in tracked if record.tracker not in running_in}
        cancelled = self._report([news for _, news in begin] + [waits(*each) for each in rest.items()])
        running = [(job_id, news) for job_id, news in begin if news.tracker not in cancelled]
        self._running += running[: MOST_RUNNING - len(self._running)]
        return {record.id for _, record, _ in tracked if record.tracker in cancelled}

    def _began(self, job: Job, record: CallRecord) -> TrackerUpdate:
        lease = self._lease
        return began(record.tracker, record.id, lease.epoch, job.claim, lease.shard.index)

    def _report(self, news: list[TrackerUpdate]) -> set[str]:
        """Returns the trackers that are cancelled."""
        try:
            return self._tracker_store.update(news) if news else set()
        except StoreUnavailable:
            raise
        except StoreError as error:
            package_logger.warning("the beginning of a run was not reported to trackers: %s", error)
            return set()

    def progress(
        self, text: str, current: float | None, total: float | None, job_id: str | None = None
    ) -> None:
        """Report the progress of all jobs of the run, or of one. Logs an error of the store."""
        runs = [news for running_id, news in self._running if job_id in (None, running_id)]
        now = time.monotonic()
        soon = not text and now < self._progressed_at + PROGRESS_INTERVAL and current != total
        if not runs or soon:
            return
        self._progressed_at = now
        try:
            self._tracker_store.progress(runs, text, current, total)
        except StoreError as error:
            package_logger.warning("progress was not reported to a tracker: %s", error)

    def interrupted(self, error: BaseException, secrets: Collection[str] = ()) -> None:
        """Report that the worker ends during the run: its jobs run again. ``secrets``: see ``ended``."""
        text = f"interrupted: {said(self._settings, error, secrets)}"
        news = [ended(run, over=False, success=False, text=text) for _, run in self._running]
        try:
            self._tracker_store.update(news)
        except StoreError as error:
            package_logger.warning("the interruption of a run was not reported to trackers: %s", error)

    def ended(
        self,
        job: Job,
        record: CallRecord,
        outcome: CallOutcome | None,
        over: bool,
        secrets: Collection[str] = (),
    ) -> list[TrackerUpdate]:
        """The report of a call whose run has ended; not ``over``: the call runs again.

        ``secrets``: values of the payloads, which are masked in the text of an error.
        """
        if not record.tracker:
            return []
        run = self._began(job, record)
        if outcome is None:
            return [run._replace(state=State.ENQUEUED)]
        error = outcome.error
        if isinstance(error, Retry) and isinstance(error.exc, Exception):
            error = error.exc
        business = isinstance(error, BusinessFailure)
        text = "" if error is None else said(self._settings, error, secrets)
        if business:
            text = self._settings.redactor.text(str(error), secrets)
        return [ended(run, over, outcome.success, business, text)]


# One run of a task function on a batch: what it returned or raised, and what was decided of each job.

#: Hashes of payloads that runs of this process have rejected, until they run again; at most REQUEUED.
requeued: set[int] = set()
REQUEUED = 10_000


def was_requeued(batch: Batch) -> bool:
    """True if a run of this process has rejected a payload of the batch, to run again."""
    return bool(requeued) and not requeued.isdisjoint(_names(batch))


def _names(batch: Batch) -> list[int]:
    name = batch.queue.name
    return [hash((name, job.id, payload.data)) for job in batch.jobs for payload in job.payloads]


class Observed(Enum):
    """Part of a run that is observed: it goes through Celery's tracer."""

    RUN = "run"
    #: A signal or an event is sent when the run begins: it has Celery's own request.
    REQUEST = "request"


class Run:
    """A run, from before the function is called until its calls have their results.

    All jobs are done unless something else is decided.
    """

    def __init__(
        self,
        decoded: DecodedBatch,
        rules: RunRules,
        call: CallRecord | None = None,
        callers: Callable[[], Iterable[CallRecord]] | None = None,
        tracked: TrackedCalls | None = None,
        observed: Observed | None = None,
        replay: Callable[[], Any] | None = None,
    ) -> None:
        self.decoded = decoded
        self.batch: Batch = decoded.batch
        self.task: Any = rules.task
        self.settings: Settings = rules.settings
        #: The call under whose id and headers it runs; None for a run with an id of its own.
        self.call = call
        #: Reads the calls of a run with an id of its own; None when no call has a record.
        self.callers = callers
        #: Reports to the trackers of its calls; None when no call has a record.
        self.tracked = tracked
        #: The part of it that is observed; None for nothing.
        self.observed: Observed | None = observed
        #: Returns or raises what the function has done, for Celery's tracer.
        self.replay: Callable[[], Any] | None = replay
        #: The process that it began in.
        self.pid: int = os.getpid()
        #: True if a run of its payloads has begun before, and was rejected or cut off.
        self.redelivered: bool = decoded.batch.suspect or was_requeued(decoded.batch)
        #: Celery's id of the run; "" before it begins.
        self.task_id: str = ""
        #: True if the settlements are final: a later failure around the function does not change them.
        self.decided: bool = False
        #: Outcome of its jobs and calls.
        self.decision: Decision = Decision(decoded)
        self.rules: RunRules = rules
        #: The Retry that the function has asked for without raising it.
        self.requested: Retry | None = None
        self._result: Any = None
        #: Raised by the function: its jobs are done, and its calls get no result.
        self._ignored: Ignore | None = None
        #: Replaces the call whose request is the task's current one.
        self._replace_call: Callable[[], Any] | None = None
        #: The exception of the function, and the one that Celery was given for it.
        self._raised: BaseException | None = None
        self._described: Exception | None = None

    @cached_property
    def secrets(self) -> set[str]:
        """The values of its payloads that are masked in whatever text it leaves."""
        payloads = chain(*self.decoded.payloads_by_id.values())
        return payload_secrets(self.task.call_form, payloads, self.settings.redactor)

    # -- what happens

    def gives_up(self, error: BaseException | None, max_retries: int | None) -> bool:
        """True if a retry for this error would end all jobs. Then ``max_retries``, None for the task's, holds
        for whatever the function raises.
        """
        rules = self.rules if max_retries is None else self.rules.with_max_retries(max_retries)
        jobs = [job.claimed for job in self.decoded.jobs_by_id.values() if job.job is not None]
        together = 0 if self.task.per_id else len(jobs)
        if all(is_exhausted(job, rules.policy, together, error) for job in jobs):
            self.rules = rules
            return True
        return False

    def begin(self, task_id: str) -> None:
        """Celery starts the run under this id."""
        self.task_id = task_id
        if requeued:
            requeued.difference_update(_names(self.batch))

    def capture(self, function: Callable[[], Any], inside: bool = False) -> Any:
        """Call a part of the run, and decide about the jobs by an exception that it raises.

        Returns or raises what Celery is to record. ``inside`` a user's ``__call__``, which may handle the
        exception, it is raised unchanged.
        """
        try:
            return staying(self.pid, function)
        except Ignore as error:
            self._ignored = self._raised = error
            raise
        except (Reject, *ENDS_WORKER) as error:
            self._raised = error
            raise
        except BaseException as raised:
            failure = as_failure(raised)
            if failure is self._described:
                raise
            if raised is not self._raised or self._described is None:
                self._raised = raised
                self.fail(failure)
            if self._described is None:
                return None if self.call is None else self._value(self.decoded.jobs[0].id)
            if inside or self._described is raised:
                raise
            raise self._described from (raised if self._described is failure else cause_of(failure))

    def succeed(self, result: Any) -> Any:
        """End the run, which has returned ``result``. Returns the result that Celery is to record."""
        if self.requested is not None:
            raise self.requested
        if self._described is not None:
            # A user's ``__call__`` has handled the failure.
            self.decision, self._described = Decision(self.decoded), None
        self._ignored, self.decided = None, True
        self._result = result
        return result if self.call is None else self._value(self.decoded.jobs[0].id)

    @property
    def has_failed(self) -> bool:
        """True if Celery is to record an exception."""
        return self._described is not None

    def fail(self, error: Exception) -> Exception | None:
        """The function has raised. Returns the exception that Celery is to record; None for a success."""
        try:
            return self._fail(error)
        except Exception as refused:  # noqa: BLE001 - the error or its payloads cannot be stored or compared
            return self._fail(refused)

    def _fail(self, error: Exception) -> Exception | None:
        failed = unwrap(error)
        if isinstance(failed, JobsFailed):
            self._result = failed.results
        decision = decide_failure(error, self.decoded, self.rules)
        self._described = decision.describe(error, time.time())
        self.decision, self._ignored, self.decided = decision, None, True
        return self._described

    def reject(self, error: Exception, requeue: bool) -> None:
        """The task has raised Reject."""
        self.decision = decide_rejection(error, requeue, self.decision, self.rules)
        if not requeue:
            # Celery's own line gives the reason.
            ids = format_job_ids([job.id for job in self.batch.jobs[:10]], len(self.batch.jobs))
            package_logger.warning("%s of %s: Reject, to the morgue", ids, self.batch.queue.name)
        elif len(requeued) < REQUEUED:
            requeued.update(_names(self.batch))

    def bury_poison_pill(self) -> None:
        """The batch must not run: it took workers down too often."""
        self.decision, self.decided = decide_poison_pill(self.decoded, self.rules), True

    def replace_calls(self, replace_call: Callable[[], Any]) -> None:
        """The function has replaced the task: ``replace_call`` does so for each call."""
        self._replace_call = replace_call

    def decode_again(self) -> dict[str, list[Any]]:
        """The payloads by id, in new objects."""
        load = self.rules.gate.load
        return {
            job_id: [load(job_id, job.claimed.payloads[n]) for n in job.positions]
            for job_id, job in self.decoded.jobs_by_id.items()
        }

    def forget_tracebacks(self) -> None:
        """Drop the tracebacks of the run's errors, at its end.

        Their frames refer to the run and to the errors, so that only the garbage collector would free them,
        and with them the copies of all frames that billiard makes for Celery.
        """
        errors = (self._raised, self._described, *(job.error for job in self.decision.jobs.values()))
        forget_tracebacks(error for error in errors if error is not None)

    # -- what was decided

    def outcome_of(self, job_id: str, position: int) -> CallOutcome | None:
        """How the calls of a payload end; None when nothing has happened to them."""
        success = self._success(job_id)
        return self.decision.call_outcome(job_id, position, success, self.settings, time.time())

    @property
    def has_callers(self) -> bool:
        """True if it has an id of its own, and calls with a record."""
        return self.callers is not None and next(iter(self.callers()), None) is not None

    def _success(self, job_id: str) -> CallOutcome:
        if self._replace_call is not None:
            return CallOutcome(True, give=self._replace_call, success=True)
        if self._ignored is not None:
            return CallOutcome(True, error=self._ignored, success=True)
        value = self._value(job_id)
        return CallOutcome(True, give=lambda: value, success=True)

    def _value(self, job_id: str) -> Any:
        decided = self.decision.jobs.get(job_id)
        if decided is not None and decided.again is not None:
            return decided.again.result
        return self._result.get(job_id) if isinstance(self._result, ById) else self._result


# Changes of a call by a retry: the payload and the record that the next run gets.


class CallChanges(NamedTuple):
    """Changes of the call by ``self.retry``; None: unchanged."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    expires: Any = None
    headers: Mapping[str, Any] | None = None


def changed_call(run: Run, asked: CallChanges) -> PayloadChange | None:
    """The change of the run's only call; None for nothing.

    A run of several calls, and one whose payload is not a call, changes nothing that these calls or their
    payload would need. Raises InvalidCall for the arguments of another id, and PayloadError.
    """
    form, call = run.task.call_form, run.call
    payloads = run.decode_again()
    # With ``by=``, a payload is a call; with ``merge=``, it may be several.
    is_call = form.has_times and run.callers is None
    if call is None and is_call:
        call = CallRecord(form.task_id_of(payloads) or run.task_id)
    if call is None:
        return None
    ((job_id, (payload,)),) = payloads.items()
    job = run.decoded.jobs_by_id[job_id]
    data = signature = b""
    if is_call and (asked.args is not None or asked.kwargs is not None):
        data, signature = _payload(run, job, form.with_arguments(job_id, payload, asked.args, asked.kwargs))
    old, record = _stored(run, job), _record(run, call, asked)
    if not (data or record):
        return None
    position = job.positions[0]
    head = id_bytes(job_id) + b"\0" + digest(data or job.claimed.payloads[position].data)
    if old or record:
        gate, payload = run.rules.gate, job.claimed.payloads[position]
        signs = gate.is_signed_record(old) if old else gate.is_signed(job_id, payload)
        stored = run.rules.dump_record(StoredRecord(head, position, b""), record or call, signs)
        return PayloadChange(position, data, signature, head, stored, old.key if old else b"")
    return PayloadChange(position, data, signature)


def _payload(run: Run, job: DecodedJob, payload: Any) -> tuple[bytes, bytes]:
    """The bytes and the signature of a new payload, which is signed if the old one's signature verifies."""
    old = job.claimed.payloads[job.positions[0]]
    # Calls do not merge.
    data = context_of(run.task.app).codecs[False].dump(payload)
    if data == old.data:
        return b"", b""
    if not run.rules.gate.is_signed(job.claimed.id, old):
        return data, b""
    score = old.score if binds_score(old.signature) else None
    queue = run.task.queue_spec.name
    return data, run.rules.gate.signing.sign_payload(queue, id_bytes(job.claimed.id), data, score)


def _stored(run: Run, job: DecodedJob) -> StoredRecord | None:
    """The call's record; None when it has none."""
    if run.call is None or job.claimed.calls is None:
        return None
    records = job.claimed.calls.records
    return next((each for each in records if run.rules.read_record(each).id == run.call.id), None)


def _record(run: Run, call: CallRecord, asked: CallChanges) -> CallRecord | None:
    """The call with another expiry and other headers of the user's; None when it is as before."""
    if asked.expires is None and asked.headers is None:
        return None
    headers = {name: value for name, value in call.headers.items() if name != TTL_ENDS}
    if asked.headers is not None:
        own = {name: value for name, value in asked.headers.items() if not hasattr(Context, name)}
        headers = {name: value for name, value in headers.items() if hasattr(Context, name)}
        headers = {**headers, "headers": own, **own}
    if asked.expires is not None:
        message = run.task.app.amqp.as_task_v2(call.id, run.task.name, expires=asked.expires)
        headers["expires"] = message.headers["expires"]
    return replace(call, headers=headers)
