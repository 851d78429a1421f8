"""Runs batches as Celery runs tasks: through the task's tracer, with signals, events and worker state."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery.exceptions import Reject
from celery.states import FAILURE, REJECTED, RETRY

from celery_lowkiq.integration.app.context import Home
from celery_lowkiq.integration.app.safe_logging import careful_logger
from celery_lowkiq.integration.task.retry_options import policy_of
from celery_lowkiq.rules.models import CONDEMNED, Batch, Fate, Verdict
from celery_lowkiq.store.jobs.call_records import CallReader
from celery_lowkiq.store.tracking.tracker_store import Tracks

from .aborts import failing
from .batch_calls import CallBook
from .decode import NOTHING, Positions, RunJob, with_unwanted
from .failure_log import log_failures
from .request import lane_request
from .run import Run
from .tracing import traced
from .tracker_updates import TrackedCalls

logger = careful_logger("celery_lowkiq")


class CeleryRunner:
    """``worker.ports.Runner`` for the ordered tasks of an app, by the names of their queues."""

    def __init__(
        self, tasks: Mapping[str, Any], consumer: Any, home: Home, reader: CallReader, tracks: Tracks
    ) -> None:
        self._tasks = tasks
        self._consumer = consumer
        self._codec = home.codec
        self._record_codec = home.record_codec
        self._settings = home.settings
        self._reader = reader
        self._tracks = tracks
        #: Of each lane, the runs of its last claim in which jobs have died.
        self._dying = threading.local()
        self._policies = {name: policy_of(task) for name, task in tasks.items()}

    def learn(self, tasks: Mapping[str, Any]) -> None:
        """Know more tasks, by the names of their queues."""
        self._policies = {**self._policies, **{name: policy_of(task) for name, task in tasks.items()}}
        self._tasks = {**self._tasks, **tasks}

    def run(self, batch: Batch) -> tuple[Verdict, ...]:
        """Verdicts of a batch; an error of ours counts as a failed run."""
        run, verdicts = self._verdicts(batch)
        if run.has_failed:
            task = self._tasks[batch.queue.name]
            log_failures(run, task.name, task.throws or ())
            if any(verdict.fate is Fate.DIE for verdict in verdicts):
                self._remember(run)
        return verdicts

    def _remember(self, run: Run) -> None:
        """Until its claim is settled. All of a claim is settled before the lane's next one runs."""
        batch = run.batch
        runs = self._dying.__dict__.setdefault("runs", [])
        runs[:] = [r for r in runs if (r.batch.lease, r.batch.claim) == (batch.lease, batch.claim)]
        runs.append(run)

    def _verdicts(self, batch: Batch) -> tuple[Run, tuple[Verdict, ...]]:
        task = self._tasks[batch.queue.name]
        run = self._run_of(batch)
        if not any(job.recorded for job in batch.jobs):
            self._try(task, run)
            return run, run.verdicts
        tracked = TrackedCalls(batch.lease.epoch, self._tracks, self._settings)
        book = CallBook(batch, self._reader, self._record_codec, task, self._consumer, tracked)
        try:
            dropped = book.admit(run)
        except Exception:
            logger.exception("a batch of %s waits, since its calls cannot be looked at", batch.queue.name)
            run.returned()
            return run, run.verdicts
        if dropped:
            run = self._run_of(batch, dropped)
        run.call, run.tracked = book.single(run), tracked
        book.begins(run)
        began_at = time.monotonic()
        if batch.jobs[0].retry_count == CONDEMNED:
            run.condemned()
            return run, book.end(run, 0.0, told=False)
        try:
            told = self._try(task, run) and run.call is not None
        except BaseException as error:
            tracked.interrupted(error)
            raise
        return run, book.end(run, time.monotonic() - began_at, told)

    def _run_of(self, batch: Batch, dropped: Positions = NOTHING) -> Run:
        name = batch.queue.name
        if batch.queue.policy:
            dropped = with_unwanted(batch, dropped)
        return Run(batch, self._policies[name], self._codec, self._settings, dropped)

    def _try(self, task: Any, run: Run) -> bool:
        """Run what there is to run. Whether Celery knows how it ended."""
        if not run.jobs:
            return False
        try:
            return self._execute(task, run)
        except Exception as error:
            logger.exception("a run of %s failed outside its function", run.batch.queue.name)
            self.last_words(error)
            if not run.decided:
                run.fails(error)
            return False

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        """Tell the task which of its jobs died for good."""
        for run in self._dying.__dict__.get("runs", ()):
            if run.batch is batch:
                self._exhausted(run.exhausted(accepted), batch.queue.name)

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
            self._settings.last_words(error)
        except Exception:
            logger.exception("lowkiq_last_words failed")

    def _execute(self, task: Any, run: Run) -> bool:
        """Whether the outcome is one that Celery has told of."""
        try:
            info = traced(task, lane_request(run, task, self._consumer), self._consumer)
        except Reject as error:
            # Celery's tracer lets a Reject out that on_success raised.
            run.rejected(error, getattr(error, "requeue", False))
            return False
        if info is not None:
            self._decide(run, info)
        return info is None or info.state != REJECTED

    def _decide(self, run: Run, info: Any) -> None:
        """What the task's own ``__call__`` has not decided: Reject, and failures around the function."""
        if info.state == REJECTED:
            run.rejected(info.retval, info.retval.requeue)
        elif info.state in (FAILURE, RETRY) and not run.decided:
            run.fails(info.retval)
