"""A node with real threads and a store in memory, for the tests of the runtime."""

from __future__ import annotations

import threading

from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.claims import lag
from celery_lowkiq.rules.models import LeaseState, QueueSpec
from celery_lowkiq.rules.shares import Splitter, default_splitter
from celery_lowkiq.worker.runtime import Runtime
from tests.unit.fakes import FakeHost, FakeRunner, FakeStore
from tests.waiting import eventually

Q = QueueSpec("q", shards=4)
SHARDS = Q.shard_refs()


def part(nodes: int, number: int) -> Splitter:
    """A fixed splitter: the part of the node with this number, from 0."""
    return lambda shards, lanes: default_splitter(shards[number::nodes], lanes)


class Node:
    """A runtime with everything around it."""

    def __init__(self, store=None, splitter=default_splitter, **options):
        self.store, self.runner, self.host = store or FakeStore(), FakeRunner(), FakeHost()
        self.gate = threading.Event()
        settings = {
            "lanes": 2,
            "poll_interval": 60.0,
            "lease_seconds": 0.5,
            "window": 50,
            "queues": [Q],
            "owner": "me",
            "clock": SystemClock(),
            **options,
        }
        self.runtime = Runtime(
            self.store,
            self.runner,
            self.host,
            settings.pop("queues"),
            scheduler_factory=settings.pop("scheduler", lag),
            splitter=splitter,
            **settings,
        )

    def start(self):
        self.runtime.start()
        return self

    def start_with_run(self, job_id="1", shard=SHARDS[0]):
        """Start with a job that runs until ``gate`` is set. Returns its batch."""
        begun = []

        def act(batch):
            if batch.jobs[0].id == job_id:
                begun.append(batch)
                self.gate.wait(10)

        self.runner.act = act
        self.store.push(shard, job_id, announce=False)
        self.start()
        (batch,) = eventually(lambda: begun)
        return batch

    def owns(self, owner="me"):
        return [shard for shard in SHARDS if self.store.leases.get(shard, LeaseState()).owner == owner]

    def shards(self):
        """The names of those that its lanes serve."""
        return [shard for lane in self.runtime.snapshot()["lanes"] for shard in lane["shards"]]

    def ran(self, *ids):
        eventually(lambda: set(ids) <= {job_id for job_id, _ in self.store.settled})


def once(error, after=False):
    """A failure that happens at the first call only."""
    left = [error]

    def fail(is_after):
        if is_after == after and left:
            raise left.pop()

    return fail
