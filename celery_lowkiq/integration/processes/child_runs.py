"""Runs of child processes: keep their time limits, and decide what the end of a child means."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from celery import platforms
from celery.exceptions import TimeLimitExceeded
from celery.worker import state

from celery_lowkiq.integration.call_form import Arguments
from celery_lowkiq.integration.decisions import RunRules, crash_batch, return_batch
from celery_lowkiq.integration.decode import RunJob, decode_plain
from celery_lowkiq.integration.events import groups_of, send_event
from celery_lowkiq.integration.light_run import only_call, raise_again
from celery_lowkiq.integration.processes import protocol
from celery_lowkiq.integration.processes.app_reference import modules_of, reference_to
from celery_lowkiq.integration.processes.child import ChildOptions
from celery_lowkiq.integration.processes.child_handle import END_TIMEOUT, ChildHandle, NotStarted, ProcessDied
from celery_lowkiq.integration.processes.protocol import OutcomeMessage
from celery_lowkiq.integration.records import CallRecord, limits_of
from celery_lowkiq.integration.request import RunRequest, new_id, succeeded
from celery_lowkiq.integration.result_writes import EncodedResult, HeldResult
from celery_lowkiq.integration.run import Observed, Run
from celery_lowkiq.integration.runner import CeleryRunner, DeadJobs
from celery_lowkiq.integration.safe_logging import safe_logger as logger
from celery_lowkiq.integration.settings import Settings
from celery_lowkiq.rules.basics import cached_property, monotonic
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Batch, Disposition, Settlement
from celery_lowkiq.rules.validators import first_limit, invalid
from celery_lowkiq.worker.forks import STOP_SIGNALS

# A run in a child process, as the worker sees it: inspect, Flower, revoke.


class ProcessRun(RunRequest):
    """A run that is active in this worker, under the id that it has in the child."""

    batch: Batch
    #: The signal by which it was terminated, and when (monotonic s); 0 and infinity: it was not.
    terminated: int = 0
    terminated_at: float = math.inf
    _process: ChildHandle | None = None

    def __init__(self, rules: RunRules, consumer: Any, batch: Batch) -> None:
        self.batch = batch
        self.task: Any = rules.task
        self._rules = rules
        self._consumer = consumer
        self._lock = threading.Lock()
        found = only_call(batch, rules)
        self.call: CallRecord | None = found[1] if found else None
        self.__dict__["_id"] = batch.run_id = self.call.id if self.call else self._own_id()

    def _own_id(self) -> str:
        form = self.task.call_form
        if self.task.by is not None:
            payloads_by_id = decode_plain(self.batch, self._rules.gate, form.check, recorded=True)
            if payloads_by_id is not None:
                return form.task_id_of(payloads_by_id) or new_id()
        return new_id()

    def runs_in(self, process: ChildHandle | None) -> None:
        """The function runs in this process; None: in no process any more."""
        with self._lock:
            self._process = process

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End the process of the run, for ``revoke(terminate=True)``.

        A stop signal has no effect on it. Its lane sends it a message to raise one.
        """
        signum = int(platforms.signals.signum(signal or "TERM"))
        with self._lock:
            if self._process is not None:
                self.terminated, self.terminated_at = signum, time.monotonic()
                if signum not in STOP_SIGNALS:
                    self._process.signal(signum, whole_group=True)

    @cached_property
    def run(self) -> Run:  # type: ignore[override]
        """The run, as far as this worker knows it."""
        return Run(self._rules.decode(self.batch), self._rules, self.call)

    @cached_property
    def arguments(self) -> Arguments:  # type: ignore[override]
        """The arguments of the function."""
        return self.task.call_form.of_run(self.run.decoded.payloads_by_id)  # type: ignore[no-any-return]

    @property
    def worker_pid(self) -> int | None:
        """The process that the function runs in."""
        process = self._process
        return None if process is None else process.pid

    def info(self, safe: bool = False) -> Any:
        """Return what ``inspect`` shows."""
        return {**super().__getattr__("info")(safe), "worker_pid": self.worker_pid}


# Runs the batches of tasks with ``run_in="process"`` in a child process of their lane.

#: Seconds until a batch whose process cannot start is tried again.
START_DELAY = 5.0


def runs_in_process(task: Any, settings: Settings) -> bool:
    """True if lanes run the task in a child process."""
    return (task.run_in or settings.run_in) == "process"


class _Lane:
    """The child process of a lane."""

    def __init__(self) -> None:
        self.process: ChildHandle | None = None
        #: True if the process ends by itself.
        self.is_spent = False

    def running_process(self, options: ChildOptions) -> ChildHandle:
        """Return the child process, a new one when there is none. Raises NotStarted."""
        if self.process is not None and self.process.options is not options:
            # It has not imported the modules of tasks that were registered since.
            self.process.ask_to_end()
            self.is_spent = True
        if self.is_spent:
            self.replace()
        if self.process is None:
            self.process = ChildHandle(threading.current_thread().name.split()[0], options)
        return self.process

    def replace(self) -> None:
        """Wait for the end of a process that has ended, or ends by itself."""
        if self.process is not None:
            self.process.end()
        self.process, self.is_spent = None, False

    def kill(self) -> None:
        """Kill the process, so that what it has not answered yet reaches no later run."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()


class _Own(threading.local):
    """The lane of a thread, made when the thread first asks for it."""

    def __init__(self, lanes: list[_Lane]) -> None:
        """``lanes``: gets the new lane."""
        self.lane: _Lane = _Lane()
        lanes.append(self.lane)


class ChildRuns:
    """The runs of a node in child processes, one for each lane that has such runs."""

    def __init__(
        self, tasks: Mapping[str, Any], consumer: Any, settings: Settings, runner: CeleryRunner
    ) -> None:
        """``tasks``: those of the runner, by queue. Raises ConfigurationError."""
        self._consumer = consumer
        self._settings = settings
        self._runner = runner
        self._options: ChildOptions | None = None
        self._lanes: list[_Lane] = []
        self._own = _Own(self._lanes)
        self.add_tasks(tasks)

    def add_tasks(self, tasks: Mapping[str, Any]) -> None:
        """Run these tasks (by queue) in processes, if their options say so. Raises ConfigurationError."""
        settings = self._settings
        found = {queue: task for queue, task in tasks.items() if runs_in_process(task, settings)}
        for task in found.values():
            _check(task, settings)
        if found:
            app, worker = self._consumer.app, self._consumer.controller
            known = self._options.modules if self._options else ()
            self._options = ChildOptions(
                reference_to(app),
                tuple(sorted({*known, *modules_of(app, found.values())})),
                self._consumer.hostname,
                worker.max_tasks_per_child,
                worker.max_memory_per_child,
                multiprocessing.get_start_method(allow_none=True),
            )
        self._runner.run_by(self, found)

    def run(self, batch: Batch, observed: Observed | None) -> tuple[Settlement, ...] | None:
        """Run a batch, see ``runner.Way``."""
        if batch.jobs[0].retry_count == POISON_PILL_RETRY_COUNT:
            return None
        run = ProcessRun(self._runner.rules_of(batch.queue.name), self._consumer, batch)
        run.begins()
        try:
            return self._run(run, self._own.lane, observed)
        except Exception as error:
            logger.exception("a batch of %s failed outside its function", batch.queue.name)
            self._runner.last_words(error)
            return return_batch(batch)
        finally:
            run.ends()

    def report_dead(self, queue: str, dead: list[RunJob]) -> None:
        """Have the child call on_retries_exhausted with jobs that died in it."""
        try:
            self._ask(self._own.lane, queue, pickle.dumps(dead))
        except Exception as error:  # noqa: BLE001 - the jobs are settled, and payloads are the user's
            logger.error("on_retries_exhausted of %s failed: %s", queue, error)

    def close(self) -> None:
        """End the child processes, when all lanes have ended."""
        for lane in self._lanes:
            if lane.process is not None:
                lane.process.ask_to_end()
        for lane in self._lanes:
            lane.replace()

    # -- a run

    def _run(self, run: ProcessRun, lane: _Lane, observed: Observed | None) -> tuple[Settlement, ...]:
        batch = run.batch
        try:
            answer = self._answer(run, lane)
        except NotStarted as error:
            logger.error("a batch of shard %s waits for %.0f s: %s", batch.shard, START_DELAY, error)
            return return_batch(batch, START_DELAY)
        except TimeLimitExceeded as error:
            logger.error("hard time limit (%s s) exceeded for %s[%s]", *error.args, run.task.name, run.id)
            return self._runner.run_traced(batch, observed, partial(raise_again, error))
        except ProcessDied as error:
            if run.terminated:
                return self._runner.end_terminated(batch, run.id, run.terminated)
            ids = [job.id for job in batch.jobs]
            logger.error("shard %s: the process that ran %s ended by %s", batch.shard, ids, error)
            return crash_batch(batch)
        if answer[0] == protocol.FAILED:
            logger.error("a batch of shard %s waits, because its run failed: %s", batch.shard, answer[2])
            return return_batch(batch, START_DELAY)
        return self._read_outcome(OutcomeMessage(*answer), batch, lane)

    def _answer(self, run: ProcessRun, lane: _Lane) -> tuple[Any, ...]:
        """Run the batch in the lane's child. Raises NotStarted, ProcessDied, TimeLimitExceeded."""
        while True:
            assert self._options is not None
            run.batch.is_starting = True
            process = lane.running_process(self._options)
            process.runs += 1
            # Not with the start of its process, which may take longer than the run.
            run.batch.began_at, run.batch.is_starting = monotonic(), False
            try:
                if process.send(self._message(process, run.batch)):
                    run.runs_in(process)
                    answer = self._wait(run, process)
                    if answer[0] != protocol.ENDED:
                        return answer
            except BaseException:
                lane.kill()
                raise
            finally:
                run.runs_in(None)
            # It ended before this batch.
            lane.replace()

    def _message(self, process: ChildHandle, batch: Batch) -> bytes:
        groups = groups_of(self._consumer.event_dispatcher)
        revoked = _revoked_since(process)
        return protocol.run_message(batch, process.runs, groups, revoked, state.revoked_stamps)

    def _wait(self, run: ProcessRun, process: ChildHandle) -> tuple[Any, ...]:
        """Return the answer of the child. Raises ProcessDied, TimeLimitExceeded."""
        task, worker, batch = run.task, self._consumer.controller, run.batch
        hard, soft = limits_of(run.call)
        hard = first_limit(hard, task.time_limit, worker.time_limit)
        soft = first_limit(soft, task.soft_time_limit, worker.soft_time_limit)
        told = batch.lost.is_set(), 0
        while True:
            answer = process.receive()
            if answer is not None and answer[0] != protocol.EVENT:
                return answer
            if answer is not None:
                self._send_event(*answer[1:])
            ran = monotonic() - batch.began_at
            if hard and ran >= hard:
                raise TimeLimitExceeded(hard)
            if soft and ran >= soft:
                logger.warning("soft time limit (%s s) exceeded for %s[%s]", soft, task.name, run.id)
                process.signal(signal.SIGUSR1)
                soft = None
            if time.monotonic() - run.terminated_at >= END_TIMEOUT:
                process.signal(signal.SIGKILL, whole_group=True)
            known, told = told, (batch.lost.is_set(), run.terminated)
            if told != known:
                process.tell(*told)

    def _send_event(self, kind: str, fields: bytes) -> None:
        # Written by a child of this process.
        send_event(self._consumer.event_dispatcher, kind, pickle.loads(fields))  # noqa: S301

    def _read_outcome(self, outcome: OutcomeMessage, batch: Batch, lane: _Lane) -> tuple[Settlement, ...]:
        lane.is_spent = outcome.is_spent
        settlements, dead = protocol.read_settlements(outcome, batch)
        if all(settlement.disposition is Disposition.DONE for settlement in settlements):
            succeeded.append(batch.run_id)
        if dead:
            self._runner.keep_dead(DeadJobs(batch, dead, self.report_dead))
        if outcome.held is None:
            return settlements
        encoded, again = EncodedResult(*outcome.held[:2]), partial(return_batch, batch)
        return self._runner.hold_result(HeldResult(time.monotonic(), encoded, batch, settlements, again))

    def _ask(self, lane: _Lane, queue: str, dead: bytes) -> None:
        """Have the child call on_retries_exhausted. Raises NotStarted, ProcessDied."""
        while True:
            assert self._options is not None
            process = lane.running_process(self._options)
            process.runs += 1
            try:
                if process.send(protocol.write((protocol.EXHAUSTED, process.runs, queue, dead))):
                    while (answer := process.receive()) is None or answer[0] == protocol.EVENT:
                        if answer is not None:
                            self._send_event(*answer[1:])
                    if answer[0] != protocol.ENDED:
                        return
            except BaseException:
                lane.kill()
                raise
            lane.replace()


def _revoked_since(process: ChildHandle) -> Sequence[str]:
    """Return the ids that were revoked since the last message to the process; each is sent once."""
    revoked: Any = state.revoked
    entries = revoked._data
    newest = next(reversed(entries.values()), None)
    if newest is process.revoked:
        return ()
    known, process.revoked = process.revoked, newest
    new = takewhile(lambda entry: entry is not known, reversed(list(entries.values())))
    # Celery 5.7 has a number between the time and the id.
    return [task_id for *_, task_id in new]


def _check(task: Any, settings: Settings) -> None:
    """Raises ConfigurationError for a task that cannot run in a process of this worker."""
    if settings.exclusion == "strict":
        expected = f"'cooperative', because {task.name} has run_in='process'"
        fix = "A frozen worker cannot end its children when their leases do: run the task in threads"
        raise ConfigurationError(invalid("lowkiq_exclusion", settings.exclusion, expected, fix))
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise ConfigurationError(
            invalid("run_in", "process", f"'thread' for {task.name}", "This system cannot fork processes")
        )
