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

from celery_lowkiq.integration.app.context import AppContext
from celery_lowkiq.integration.runs.runner import CeleryRunner
from celery_lowkiq.rules.claims import Claim
from celery_lowkiq.rules.models import Batch, Lease, QueueSpec, ShardRef
from celery_lowkiq.store.jobs.call_records import CallReader
from celery_lowkiq.store.redis_store import RedisStore

#: Value of ``self.request.hostname``, and prefix of the owner of a drained shard.
HOSTNAME = "drain@test"


def drain(app: Celery, context: AppContext, tasks: Mapping[str, Any], most: int) -> int:
    """Run the due jobs of tasks, by queue, until none is due. Return the number of runs.

    Raises AssertionError when a worker serves a queue, or after ``most`` runs.
    """
    store = context.store
    consumer = SimpleNamespace(app=app, hostname=HOSTNAME, event_dispatcher=None)
    runner = CeleryRunner(tasks, consumer, context, CallReader(store.client), context.tracker_store)
    specs = [task.queue_spec for task in tasks.values()]
    runs = 0
    with contextlib.closing(runner.loops), _traced(app, tasks.values()), _shards(store, specs) as shards:
        while sum(shard.run(runner) for shard in shards):
            runs = sum(shard.runs for shard in shards)
            assert runs < most, f"something is still due after {runs} runs: does a task call itself?"
    return runs


class _Shard:
    """A shard owned by the test."""

    def __init__(self, store: RedisStore, queue: QueueSpec, lease: Lease) -> None:
        self.runs = 0
        self._store = store
        self._queue = queue
        self._lease = lease
        self._requests = 0

    def run(self, runner: CeleryRunner) -> bool:
        """Run a batch if one is due. Return whether it ran."""
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
        self.runs += 1
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
