"""Runs due jobs in the calling thread, through Celery's tracer as a worker's lane does."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.app import trace
from celery.exceptions import MaxRetriesExceededError, Reject, Retry

from celery_lowkiq.integration.app.context import AppContext
from celery_lowkiq.integration.runs.run import Run
from celery_lowkiq.integration.runs.runner import CeleryRunner
from celery_lowkiq.rules.claims import Claim
from celery_lowkiq.rules.models import Batch, Disposition, Lease, QueueSpec, Settlement, ShardRef
from celery_lowkiq.store.jobs.call_records import CallReader
from celery_lowkiq.store.redis_store import RedisStore

#: Value of ``self.request.hostname``, and prefix of the owner of a drained shard.
HOSTNAME = "drain@test"


def drain(app: Celery, context: AppContext, tasks: Mapping[str, Any], most: int, propagate: bool) -> int:
    """Run the due jobs of tasks, by queue, until none is due. Return the number of runs.

    Raises AssertionError when a worker serves a queue, or after ``most`` runs; with ``propagate`` also what a
    run has raised, when it is settled.
    """
    store = context.store
    consumer = SimpleNamespace(app=app, hostname=HOSTNAME, event_dispatcher=None)
    runner = _Runner(tasks, consumer, context, CallReader(store.client), context.tracker_store)
    specs = [task.queue_spec for task in tasks.values()]
    runs = 0
    with contextlib.closing(runner.loops), _traced(app, tasks.values()), _shards(store, specs) as shards:
        while sum(shard.run(runner, propagate) for shard in shards):
            runs = sum(shard.runs for shard in shards)
            assert runs < most, f"something is still due after {runs} runs: does a task call itself?"
    return runs


class _Runner(CeleryRunner):
    """Keeps what the last batch has raised: its jobs have only the text."""

    #: Whether Celery's tracer had the batch. A plain run that succeeds leaves nothing.
    was_traced = False
    error: BaseException | None = None
    _traceback: Any = None

    def run(self, batch: Batch) -> tuple[Settlement, ...]:
        """See CeleryRunner."""
        self.was_traced, self.error = False, None
        return super().run(batch)

    def _end(self, run: Run, settlements: tuple[Settlement, ...]) -> tuple[Settlement, ...]:
        self.was_traced = True
        # Rejected payloads are where the task wants them, and a retry that names no error is no failure.
        raised = (each for each in run.decision.jobs.values() if each.error and not each.is_requested)
        self.error = next((each.error for each in raised if not isinstance(each.error, Reject)), None)
        if isinstance(self.error, Retry):
            self.error = MaxRetriesExceededError(str(self.error))
        self._traceback = self.error and self.error.__traceback__
        return super()._end(run, settlements)

    def propagate(self) -> None:
        """Raise what the last batch has raised."""
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)


class _Shard:
    """A shard owned by the test."""

    def __init__(self, store: RedisStore, queue: QueueSpec, lease: Lease) -> None:
        self.runs = 0
        self._store = store
        self._queue = queue
        self._lease = lease
        self._requests = 0

    def run(self, runner: _Runner, propagate: bool) -> bool:
        """Run a batch if one is due. Return whether one was."""
        claim = self._claim()
        if not claim.jobs:
            return False
        batch = Batch(
            self._queue,
            self._lease,
            claim.number,
            claim.jobs,
            threading.Event(),
            time.monotonic(),
            claim.now,
            suspect=claim.suspect,
        )
        settlements = (*runner.run(batch), *runner.flush())
        settled = self._store.settle(self._queue, self._lease, settlements)
        runner.settled(batch, settled.accepted)
        # Not a batch that only goes back, because its time has not come by the caller's clock.
        self.runs += runner.was_traced or any(
            one.disposition is not Disposition.RETURN for one in settlements
        )
        if propagate:
            runner.propagate()
        return True

    def _claim(self) -> Claim:
        # A claim skips a limited number of due ids without a token; the next claim goes on after them.
        while True:
            self._requests += 1
            claim = self._store.claim(self._queue, self._lease, self._requests)
            if claim.jobs or claim.next_due is None or claim.next_due > claim.now:
                return claim

    def release(self) -> None:
        self._store.release(self._lease)


@contextlib.contextmanager
def _shards(store: RedisStore, specs: Iterable[QueueSpec]) -> Iterator[list[_Shard]]:
    owner = f"{HOSTNAME}-{uuid.uuid4().hex[:12]}"
    with contextlib.ExitStack() as releases:
        shards = []
        for spec in specs:
            refs = [ShardRef(spec.name, index) for index in range(spec.shards)]
            for ref, seen in zip(refs, store.observe(refs), strict=True):
                assert seen is not None
                # A shard that another drain left, when its task raised a BaseException, is recovered.
                assert not seen.owner or seen.owner.startswith(HOSTNAME), f"a worker serves {spec.name!r}"
                shards.append(_Shard(store, spec, store.acquire(spec, ref, owner, seen, seen.epoch)))
                releases.callback(shards[-1].release)
        yield shards


@contextlib.contextmanager
def _traced(app: Celery, tasks: Iterable[Any]) -> Iterator[None]:
    """Build the tasks' tracers as a starting worker does, from the module that Sentry patches."""
    with contextlib.ExitStack() as restores:
        for task in tasks:
            restores.callback(setattr, task, "__trace__", task.__trace__)
            task.__trace__ = trace.build_tracer(task.name, task, app.loader, HOSTNAME, app=app)
        yield
