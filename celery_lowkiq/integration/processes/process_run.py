"""A run in a child process, as the worker sees it: inspect, Flower, revoke."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from celery import platforms
from celery.worker import state

from celery_lowkiq.integration.records.call_record import CallRecord, limits_of
from celery_lowkiq.integration.runs.decisions import RunRules
from celery_lowkiq.integration.runs.decode import decode_plain, is_small
from celery_lowkiq.integration.runs.plain_call import only_call
from celery_lowkiq.integration.runs.request import (
    IGNORED_RESULT,
    LaneRequest,
    new_id,
    quiet_request,
    show_arguments,
)
from celery_lowkiq.integration.runs.run import Run
from celery_lowkiq.rules.cached_property import cached_property
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.worker.stop_signals import STOP_SIGNALS

from .lane_process import LaneProcess


class ProcessRun:
    """A run that is active in this worker, under the id that it has in the child."""

    acknowledged = True

    def __init__(self, rules: RunRules, consumer: Any, batch: Batch) -> None:
        self.batch = batch
        self.task: Any = rules.task
        #: The signal by which it was terminated, and when (monotonic s); 0 and infinity: it was not.
        self.terminated: int = 0
        self.terminated_at: float = math.inf
        self._rules = rules
        self._consumer = consumer
        self._process: LaneProcess | None = None
        self._lock = threading.Lock()
        found = only_call(batch, rules)
        self._call = found[1] if found else None
        #: Celery's id of the run.
        self.id: str = self._call.id if self._call else self._own_id()
        batch.run_id = self.id

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The hard and the soft time limit of its call in s; None: those of its task."""
        return limits_of(self._call)

    def _own_id(self) -> str:
        form = self.task.call_form
        if self.task.by is not None:
            payloads_by_id = decode_plain(self.batch, self._rules.gate, form.check, recorded=True)
            if payloads_by_id is not None:
                return form.task_id_of(payloads_by_id) or new_id()
        return new_id()

    def begins(self) -> None:
        """Count the run as active."""
        name = self.task.name
        state.requests[self.id] = self
        state.active_requests.add(self)
        state.total_count[name] += 1
        state.all_total_count[0] += 1

    def ends(self) -> None:
        """Count the run as ended."""
        with self._lock:
            self._process = None
        state.requests.pop(self.id, None)
        state.active_requests.discard(self)

    def runs_in(self, process: LaneProcess | None) -> None:
        """The function runs in this process; None: in no process any more."""
        with self._lock:
            self._process = process

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End the process of the run, for ``revoke(terminate=True)``.

        A stop signal has no effect on it. Its lane tells it to raise one.
        """
        signum = int(platforms.signals.signum(signal or "TERM"))
        with self._lock:
            if self._process is not None:
                self.terminated, self.terminated_at = signum, time.monotonic()
                if signum not in STOP_SIGNALS:
                    self._process.signal(signum, whole_group=True)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Do nothing: runs do not depend on the broker."""

    @cached_property
    def full(self) -> LaneRequest:
        """The request of Celery's worker."""
        record = self._call or CallRecord(self.id, IGNORED_RESULT)
        decoded = self._rules.decode(self.batch)
        run = Run(decoded, self._rules, self._call)
        arguments = self.task.call_form.of_run(decoded.payloads_by_id)
        shown = show_arguments(self.task, arguments, is_small(self.batch))
        full = quiet_request(run, record, shown, arguments, self._consumer).full()
        full.time_start = time.time() - (time.monotonic() - self.batch.began_at)
        return full

    @property
    def worker_pid(self) -> int | None:
        """The process that the function runs in."""
        process = self._process
        return None if process is None else process.pid

    def info(self, safe: bool = False) -> Any:
        """Return what ``inspect`` shows."""
        return {**self.full.info(safe), "worker_pid": self.worker_pid}

    def __getattr__(self, name: str) -> Any:
        """An attribute of Celery's request."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.full, name)
