"""Runs batches as Celery runs tasks: through the task's tracer, with signals, events and worker state."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery.exceptions import Reject
from celery.states import FAILURE, REJECTED, RETRY

from celery_lowkiq.integration.app.context import AppContext
from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Batch, Disposition, Settlement
from celery_lowkiq.store.jobs.call_records import CallReader
from celery_lowkiq.store.tracking.tracker_store import TrackerStore

from .aborts import failing
from .batch_calls import BatchCalls
from .decisions import RunRules, give_back
from .decode import RunJob, decode_batch
from .failure_log import log_failures
from .finish_calls import CallFinisher
from .request import run_request
from .retry_policy import policy_of
from .run import Run
from .tracing import traced
from .tracker_updates import TrackedCalls


class CeleryRunner:
    """``worker.ports.Runner`` for the ordered tasks of an app, by the names of their queues."""

    def __init__(
        self,
        tasks: Mapping[str, Any],
        consumer: Any,
        context: AppContext,
        reader: CallReader,
        tracker_store: TrackerStore,
    ) -> None:
        self._tasks: dict[str, Any] = {}
        self._rules: dict[str, RunRules] = {}
        self._consumer = consumer
        self._context = context
        self._reader = reader
        self._tracker_store = tracker_store
        #: Of each lane, the runs of its last claim in which jobs have died.
        self._dying = threading.local()
        self.learn(tasks)

    def learn(self, tasks: Mapping[str, Any]) -> None:
        """Add tasks, by the names of their queues."""
        codec, settings = self._context.codec, self._context.settings
        rules = {name: RunRules(policy_of(task), codec, settings) for name, task in tasks.items()}
        # Lanes read these meanwhile.
        self._rules = {**self._rules, **rules}
        self._tasks = {**self._tasks, **tasks}

    def run(self, batch: Batch) -> tuple[Settlement, ...]:
        """The verdicts on a batch. An exception of this package counts as a failed run."""
        task, rules = self._tasks[batch.queue.name], self._rules[batch.queue.name]
        if any(job.recorded for job in batch.jobs):
            return self._run_calls(task, rules, batch)
        run = Run(decode_batch(batch, rules.codec, rules.settings), rules)
        self._try(task, run)
        verdicts = run.decision.verdicts
        if run.decision.jobs:
            self._report_failures(task, run, verdicts)
        return verdicts

    def _run_calls(self, task: Any, rules: RunRules, batch: Batch) -> tuple[Settlement, ...]:
        """Run a batch with recorded calls, which may be revoked, and get results."""
        tracked = TrackedCalls(batch.lease.epoch, self._tracker_store, rules.settings)
        calls = BatchCalls(batch, self._reader, self._context.record_codec, task, self._consumer, tracked)
        decoded = decode_batch(batch, rules.codec, rules.settings)
        try:
            dropped = calls.admit(decoded)
        except Exception:
            logger.exception("a batch of %s waits, since its calls cannot be read or ended", batch.queue.name)
            return give_back(batch)
        if dropped:
            decoded = decode_batch(batch, rules.codec, rules.settings, dropped)
        call = calls.single(decoded)
        run = Run(decoded, rules, call, None if call else partial(calls.running, decoded), tracked)
        if call is None:
            calls.report_started(decoded)
        has_reported, runtime = False, 0.0
        if batch.jobs[0].retry_count == POISON_PILL_RETRY_COUNT:
            run.bury_poison_pill()
        else:
            began_at = time.monotonic()
            try:
                has_reported = self._try(task, run) and call is not None
            except BaseException as error:
                tracked.interrupted(error)
                raise
            runtime = time.monotonic() - began_at
        verdicts = CallFinisher(run, calls, runtime, has_reported).finish()
        self._report_failures(task, run, verdicts)
        return verdicts

    def _try(self, task: Any, run: Run) -> bool:
        """Run the function, if any payload can run. Returns whether Celery has reported the outcome."""
        if not run.decoded.jobs:
            return False
        try:
            return self._execute(task, run)
        except Exception as error:
            logger.exception("a run of %s failed outside its function", run.batch.queue.name)
            self.last_words(error)
            if not run.decided:
                run.fail(error)
            return False

    def _execute(self, task: Any, run: Run) -> bool:
        """Run the function through Celery's tracer. Returns whether Celery has reported the outcome."""
        request = run_request(run, task, self._consumer)
        run.begin(request.id)
        try:
            info = traced(task, request, self._consumer)
        except Reject as error:
            # Celery's tracer lets a Reject out that on_success raised.
            run.reject(error, getattr(error, "requeue", False))
            return False
        if info is None:
            return True
        if info.state == REJECTED:
            run.reject(info.retval, info.retval.requeue)
            return False
        if info.state in (FAILURE, RETRY) and not run.decided:
            # A failure around the function, which the task's own __call__ did not raise.
            run.fail(info.retval)
        return True

    # -- after the run

    def _report_failures(self, task: Any, run: Run, verdicts: tuple[Settlement, ...]) -> None:
        """Log the failures, and remember a run with dead jobs for on_retries_exhausted."""
        if failures := run.decision.failures:
            log_failures(run, failures, task.name, task.throws or ())
            if any(verdict.fate is Disposition.DIE for verdict in verdicts):
                self._remember(run)

    def _remember(self, run: Run) -> None:
        """Until its claim is settled. All of a claim is settled before the lane's next one runs."""
        batch = run.batch
        runs = self._dying.__dict__.setdefault("runs", [])
        runs[:] = [r for r in runs if (r.batch.lease, r.batch.claim) == (batch.lease, batch.claim)]
        runs.append(run)

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        """Call on_retries_exhausted with the jobs that died."""
        for run in self._dying.__dict__.get("runs", ()):
            if run.batch is batch:
                self._exhausted(run.decision.dead_jobs(accepted), batch.queue.name)

    def _exhausted(self, dead: list[RunJob], queue: str) -> None:
        callback = self._tasks[queue].on_retries_exhausted
        if dead and callback is not None:
            try:
                failing(partial(callback, dead))
            except Exception as error:
                logger.exception("on_retries_exhausted of %s failed", queue)
                self.last_words(error)

    def last_words(self, error: BaseException) -> None:
        """Call ``lowkiq_last_words``."""
        try:
            self._context.settings.last_words(error)
        except Exception:
            logger.exception("lowkiq_last_words failed")
