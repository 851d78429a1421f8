"""Runs batches as Celery runs tasks: through the task's tracer, with signals, events and worker state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from celery.exceptions import Reject
from celery.states import FAILURE, REJECTED, RETRY
from celery.worker import state

from celery_lowkiq.integration.app import AppContext
from celery_lowkiq.integration.decisions import RunRules, call_user_code, policy_of, return_batch
from celery_lowkiq.integration.decode import DecodedBatch, RunJob
from celery_lowkiq.integration.function_adapters import RunRevoked
from celery_lowkiq.integration.light_run import PlainRequest, PlainRuns
from celery_lowkiq.integration.loops import Loops
from celery_lowkiq.integration.recorded_calls import BatchCalls, CallFinisher
from celery_lowkiq.integration.records import CallRecord
from celery_lowkiq.integration.request import IGNORED_RESULT, CallRequest, RunObservers, RunRequest
from celery_lowkiq.integration.result_writes import HeldResult, ResultBuffers, write
from celery_lowkiq.integration.run import Observed, Run, TrackedCalls, report, traced
from celery_lowkiq.integration.run_logs import being_written, log_failures, wait_for_lines
from celery_lowkiq.integration.safe_logging import safe_logger as logger
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Batch, Disposition, Settlement
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.trackers import TrackerStore


class Way(Protocol):
    """Calls the functions of tasks without Celery's tracer in the lane's thread."""

    def run(self, batch: Batch, observed: Observed | None) -> tuple[Settlement, ...] | None:
        """The settlements of a batch, as of :meth:`CeleryRunner.run`.

        None, before anything has run, for a batch that needs Celery's tracer.
        """


class DeadJobs(NamedTuple):
    """Jobs of a run that have died. ``report`` gets the queue, and those whose settle was accepted."""

    batch: Batch
    jobs: list[RunJob]
    report: Callable[[str, list[RunJob]], None]


class _LastClaim(threading.local):
    """The runs of a lane's last claim in which jobs have died."""

    dead: tuple[DeadJobs, ...] = ()


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
        self._rules: dict[str, RunRules] = {}
        self._observers: dict[str, RunObservers] = {}
        self._ways: dict[str, Way] = {}
        self._consumer = consumer
        self._context = context
        self._reader = reader
        self._tracker_store = tracker_store
        self._last_claim = _LastClaim()
        self._buffers = ResultBuffers()
        #: Event loops of ``async def`` tasks; the owner of the runner closes them.
        self.loops: Loops = Loops(context.settings)
        self.add_tasks(tasks)

    def add_tasks(self, tasks: Mapping[str, Any]) -> None:
        """Add tasks, by the names of their queues."""
        gate, of_app = self._context.gate, (self._context.settings, self.loops)
        rules = {
            name: RunRules(task, policy_of(task), gate(task.queue_spec.name), *of_app)
            for name, task in tasks.items()
        }
        observers = {name: RunObservers(task, self._consumer) for name, task in tasks.items()}
        ways = {
            name: PlainRuns(one, self._consumer, observers[name], self._repeat, self._buffers)
            for name, one in rules.items()
        }
        # Lanes read these meanwhile.
        self._rules = {**self._rules, **rules}
        self._observers = {**self._observers, **observers}
        self._ways = {**self._ways, **ways}

    def run_by(self, way: Way, queues: Iterable[str]) -> None:
        """Run the batches of these queues in another way than in their lane."""
        self._ways = {**self._ways, **dict.fromkeys(queues, way)}

    def rules_of(self, queue: str) -> RunRules:
        """The task and policy of the queue."""
        return self._rules[queue]

    def run(self, batch: Batch) -> tuple[Settlement, ...]:
        """Run a batch. Returns its settlements; none if its result is held back, until :meth:`flush`.

        An unexpected exception around the function fails the run.
        """
        queue = batch.queue.name
        observed = self._observers[queue].look()
        settlements = self._ways[queue].run(batch, observed)
        return self.run_traced(batch, observed) if settlements is None else settlements

    def run_traced(
        self, batch: Batch, observed: Observed | None, replay: Callable[[], Any] | None = None
    ) -> tuple[Settlement, ...]:
        """Run a batch through Celery's tracer.

        ``replay`` returns or raises what the function did, in a run that has begun elsewhere.
        """
        rules = self._rules[batch.queue.name]
        decoded = rules.decode(batch)
        revoked = _revoked_call(rules, batch, decoded)
        wait = rules.task.call_form.eta_of(decoded.payloads_by_id, batch) - batch.claimed_at
        if wait > 0 and revoked is None:
            # A job with `by=` has the time of its first call; this one asked for a later time.
            return return_batch(batch, wait)
        if any(job.recorded for job in batch.jobs):
            return self._run_recorded(rules, decoded, observed, replay)
        if revoked is not None:
            (job,) = batch.jobs
            request = CallRequest(revoked, rules.task, self._consumer, {}, job.retry_count + 1)
            try:
                request.full().revoked()
            except Exception:
                logger.exception("a call of %s waits, because it cannot be revoked", batch.queue.name)
                return return_batch(batch)
            decoded = rules.decode(batch, {job.id: {0}})
        return self._run(Run(decoded, rules, observed=observed, replay=replay))

    def end_terminated(self, batch: Batch, task_id: str, signum: int) -> tuple[Settlement, ...]:
        """End a batch whose process ``revoke(terminate=True)`` has ended by this signal; revoke its calls."""
        rules = self._rules[batch.queue.name]
        if any(job.recorded for job in batch.jobs):
            try:
                self._calls(batch, rules).admit(rules.decode(batch), signum)
            except Exception:
                logger.exception(
                    "a batch of %s runs again, because its calls cannot be ended", batch.queue.name
                )
                return return_batch(batch)
        else:
            request = CallRequest(CallRecord(task_id, IGNORED_RESULT), rules.task, self._consumer, {}, 0)
            report(request.full().terminated, signum)
        everything = {job.id: range(len(job.payloads)) for job in batch.jobs}
        return Run(rules.decode(batch, everything), rules).decision.settlements

    def flush(self) -> tuple[Settlement, ...]:
        """Write what runs of this lane have left. Returns the settlements that wait for that."""
        if being_written:
            wait_for_lines()
        return self._buffers.own.flush()

    def take_result(self) -> HeldResult | None:
        """Take the result of the last run, if it is held back."""
        return self._buffers.own.take()

    def hold_result(self, held: HeldResult) -> tuple[Settlement, ...]:
        """Hold back the result of a run in a child process. Returns its settlements, as :meth:`run` does."""
        backend, buffer = self._rules[held.batch.queue.name].task.backend, self._buffers.own
        if buffer.accepts(backend):
            buffer.add(held)
            return ()
        # The lane holds results for another backend.
        write(backend, [held.encoded], retry=True)
        return held.done

    def write_late(self) -> None:
        """Write the results that wait behind long runs of their lanes."""
        self._buffers.write_late()

    def _repeat(self, request: PlainRequest) -> tuple[Settlement, ...]:
        """Give a plain run, whose function has run, to Celery's tracer."""
        run, calls = request.run, None
        if run.call is not None:
            calls = self._calls(run.batch, run.rules)
            calls.take()
        return self._run(run, calls, request)

    def _calls(self, batch: Batch, rules: RunRules) -> BatchCalls:
        tracked = TrackedCalls(batch.lease, self._tracker_store, rules.settings)
        return BatchCalls(batch, rules, self._reader, self._consumer, tracked)

    def _run_recorded(
        self,
        rules: RunRules,
        decoded: DecodedBatch,
        observed: Observed | None,
        replay: Callable[[], Any] | None,
    ) -> tuple[Settlement, ...]:
        """Run a batch with recorded calls, which may be revoked, and get results."""
        batch = decoded.batch
        calls = self._calls(batch, rules)
        try:
            dropped = calls.admit(decoded)
        except Exception:
            logger.exception("a batch of %s waits: its calls cannot be read or ended", batch.queue.name)
            return return_batch(batch)
        if dropped:
            decoded = rules.decode(batch, dropped)
        call = calls.single(decoded)
        callers = None if call else partial(calls.running, decoded)
        run = Run(decoded, rules, call, callers, calls.tracked, observed, replay)
        if call is None:
            calls.report_started(decoded)
        return self._run(run, calls)

    def _run(
        self, run: Run, calls: BatchCalls | None = None, request: PlainRequest | None = None
    ) -> tuple[Settlement, ...]:
        """Run the function through Celery's tracer, and give the calls that have records their results."""
        has_reported, began_at = False, time.monotonic()
        if run.batch.jobs[0].retry_count == POISON_PILL_RETRY_COUNT:
            run.bury_poison_pill()
        else:
            try:
                has_reported = self._try(run, request) and run.call is not None
            except BaseException as error:
                if calls is not None:
                    calls.tracked.interrupted(error, run.secrets)
                raise
        if calls is None:
            return self._end(run, run.decision.settlements)
        runtime = time.monotonic() - began_at
        if not has_reported:
            # Signals may be connected, and events enabled, while the function runs.
            run.observed = self._observers[run.batch.queue.name].look()
        return self._end(run, CallFinisher(run, calls, runtime, has_reported).finish())

    def _try(self, run: Run, request: PlainRequest | None = None) -> bool:
        """Run the function, if any payload can run. Returns whether Celery has reported the outcome."""
        if not run.decoded.jobs:
            return False
        try:
            return self._execute(run, request or RunRequest(run, self._consumer).form(run.observed))
        except Exception as error:
            logger.exception("a run of %s failed outside its function", run.batch.queue.name)
            self.last_words(error)
            if not run.decided:
                run.fail(error)
            return False

    def _execute(self, run: Run, request: Any) -> bool:
        run.begin(request.id)
        try:
            info = traced(run.task, request, has_begun=run.replay is not None)
        except Reject as error:
            # Celery's tracer lets a Reject out that on_success raised.
            run.reject(error, getattr(error, "requeue", False))
            return False
        if info is None:
            return True
        if isinstance(info.retval, RunRevoked):
            return False
        if info.state == REJECTED:
            run.reject(info.retval, info.retval.requeue)
        if info.state in (FAILURE, RETRY) and not run.decided:
            # A failure around the function, which the task's own __call__ did not raise.
            run.fail(info.retval)
        return True

    # -- after the run

    def _end(self, run: Run, settlements: tuple[Settlement, ...]) -> tuple[Settlement, ...]:
        """Log the failures, and keep a run with dead jobs until its claim is settled."""
        if run.decision.failures:
            log_failures(run)
            died = [each.id for each in settlements if each.disposition is Disposition.DIE]
            if dead := run.decision.dead_jobs(died):
                self.keep_dead(DeadJobs(run.batch, dead, self.report_dead))
        run.forget_tracebacks()
        return settlements

    def keep_dead(self, dead: DeadJobs) -> None:
        """Keep jobs that have died until their claim is settled."""
        # All of a claim is settled before the lane's next one runs.
        claim = dead.batch.lease, dead.batch.claim
        kept = [each for each in self._last_claim.dead if (each.batch.lease, each.batch.claim) == claim]
        self._last_claim.dead = (*kept, dead)

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        """Call on_retries_exhausted with the jobs that died."""
        for dead in self._last_claim.dead:
            if dead.batch is batch and (found := [job for job in dead.jobs if job.id in accepted]):
                dead.report(batch.queue.name, found)

    def dead_jobs(self, batch: Batch) -> list[RunJob]:
        """The jobs of a batch of the lane's last claim that have died."""
        return [job for dead in self._last_claim.dead if dead.batch is batch for job in dead.jobs]

    def report_dead(self, queue: str, dead: list[RunJob]) -> None:
        """Call on_retries_exhausted with jobs that died."""
        react = self._rules[queue].task.on_retries_exhausted
        if react is not None:
            try:
                call_user_code(partial(react, dead))
            except Exception as error:
                logger.exception("on_retries_exhausted of %s failed", queue)
                self.last_words(error)

    def last_words(self, error: BaseException) -> None:
        try:
            self._context.settings.last_words(error)
        except Exception:
            logger.exception("lowkiq_last_words failed")


def _revoked_call(rules: RunRules, batch: Batch, decoded: DecodedBatch) -> CallRecord | None:
    """The call of a batch whose only payload is that of a revoked call."""
    call_id = rules.task.call_form.task_id_of(decoded.payloads_by_id)
    if call_id in state.revoked and len(batch.jobs) == 1 and len(batch.jobs[0].payloads) == 1:
        return CallRecord(call_id, IGNORED_RESULT)
    return None
