"""Finishes the calls of a run: results, links, signals, events, trackers.

Each call is played through Celery's tracer under its own id. So its result, links, chord part, signals and
events are Celery's, in each version of Celery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NoReturn

from kombu.exceptions import SerializationError

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.integration.records.call_record import CallRecord
from celery_lowkiq.integration.records.orphans import fail
from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import Disposition, Job, Settlement
from celery_lowkiq.rules.tracking import TrackerUpdate

from .base_exceptions import RunAborted, as_failure
from .batch_calls import BatchCalls, StoredCall
from .decisions import RETURN_DELAY, retry_for_results
from .outcomes import CallOutcome
from .request import call_request, outcome_request
from .run import Run
from .task_function import RunRevoked
from .tracing import ReportingFailed, report, traced

#: Errors that links with wrong parts raise at each try. Errors of servers, which pass, have other classes.
UNSENDABLE = (TypeError, ValueError, LookupError, AttributeError, RecursionError, SerializationError)


@dataclass
class _Finished:
    """What has become of the calls of a job."""

    #: First and last key of ranges of records that are not needed any more.
    ended: list[tuple[bytes, bytes]] = field(default_factory=list)
    news: list[TrackerUpdate] = field(default_factory=list)
    #: The last error that kept calls from their results.
    error: Exception | None = None
    #: Whether any of these calls has succeeded.
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
            logger.warning("job %r runs again, since not all of its calls could be ended: %s", job.id, error)
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
        """Whether nothing more will happen to the call."""
        if self._has_reported:
            return outcome.final
        payloads, retries = self._run.decoded.payloads_of(job.id, call.position), job.retry_count + 1
        task, consumer = self._calls.task, self._calls.consumer
        try:
            if isinstance(outcome.error, RunRevoked):
                report(call_request(call.record, task, consumer, payloads, retries).full().terminated)
                return True
            request = outcome_request(call.record, task, consumer, payloads, retries, self._play(outcome))
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
                logger.exception("job %r: some call results could not be written", job.id)
            finished.error = error
            finished.success = finished.success or outcome.success
            return outcome.final and not outcome.success
        return outcome.final

    def _fail_broken(self, record: CallRecord, why: str, error: Exception) -> bool:
        """End a call that no later run could finish either. Returns True."""
        logger.exception("call %s ends as FAILURE, since %s", record.id, why)
        report(fail, self._calls.task, replace(record, embed={}), _cause_of(error))
        return True

    def _trace(self, call: StoredCall, outcome: CallOutcome, request: Any) -> None:
        """Play the call. If a receiver of a signal raises what is no Exception, a failure is stored without
        Celery's tracer, which would never end it.
        """
        try:
            traced(self._calls.task, request, self._calls.consumer, self._runtime)
        except RunAborted as aborted:
            if not outcome.final or outcome.success:
                raise
            logger.error("call %s ends outside of Celery's tracer: %s", call.record.id, aborted)
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
