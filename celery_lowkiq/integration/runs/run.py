"""One run of a task function on a batch: what it returned or raised, and what was decided of each job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.integration.calls.masking import payload_secrets
from celery_lowkiq.integration.records.call_record import CallRecord
from celery_lowkiq.rules.cached_property import cached_property
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.rules.retry import is_exhausted
from celery_lowkiq.rules.text import format_job_ids
from celery_lowkiq.worker.forks import staying

from .base_exceptions import ENDS_WORKER, as_failure, forget_tracebacks
from .decisions import Decision, RunRules, decide_failure, decide_poison_pill, decide_rejection
from .decode import DecodedBatch
from .outcomes import ById, CallOutcome, JobsFailed, cause_of, unwrap
from .tracker_updates import TrackedCalls

#: Hashes of payloads that runs of this process have rejected, until they run again; at most REQUEUED.
requeued: set[int] = set()
REQUEUED = 10_000


def was_requeued(batch: Batch) -> bool:
    """Whether a run of this process has rejected a payload of the batch, to run again."""
    return bool(requeued) and not requeued.isdisjoint(_names(batch))


def _names(batch: Batch) -> list[int]:
    name = batch.queue.name
    return [hash((name, job.id, payload.data)) for job in batch.jobs for payload in job.payloads]


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
        #: Returns or raises what the function has done, for Celery's tracer.
        self.replay: Callable[[], Any] | None = replay
        #: The process that it began in.
        self.pid: int = os.getpid()
        #: Whether a run of its payloads has begun before, and was rejected or cut off.
        self.redelivered: bool = decoded.batch.suspect or was_requeued(decoded.batch)
        #: Celery's id of the run; "" before it begins.
        self.task_id: str = ""
        #: Whether the settlements are final: a later failure around the function does not change them.
        self.decided: bool = False
        #: What becomes of its jobs and calls.
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
        """Whether a retry for this error would end all jobs. Then ``max_retries``, None for the task's, holds
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

    def capture(self, function: Callable[[], Any]) -> Any:
        """Call a part of the run, and decide about the jobs by an exception that it raises.

        Returns or raises what Celery is to record.
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
            self._raised = raised
            failure = as_failure(raised)
            if failure is self._described:
                raise
            described = self.fail(failure)
            if described is None:
                return None if self.call is None else self._value(self.decoded.jobs[0].id)
            if described is raised:
                raise
            raise described from (raised if described is failure else cause_of(failure))

    def succeed(self, result: Any) -> Any:
        """The function has returned. Returns the result that Celery is to record."""
        if self.requested is not None:
            raise self.requested
        self.decided = True
        self._result = result
        return result if self.call is None else self._value(self.decoded.jobs[0].id)

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
            logger.warning("%s of %s: Reject, to the morgue", ids, self.batch.queue.name)
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
        """Whether it has an id of its own, and calls with a record."""
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
