"""Which shards count as unowned, and what a scrape says without Redis."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import ClassVar

import pytest
from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.metrics.node import NodeMetrics
from celery_lowkiq.metrics.queues import QueueCollector
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import LeaseState, ShardRef
from celery_lowkiq.rules.views import LaneReport, NodeReport, Running, ShardState, Stats


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


class Looks:
    """An inspector that shows leases, or fails."""

    denied: ClassVar = {}

    def __init__(self, *leases):
        self.leases = list(leases)
        self.error = None
        self.nodes = ()

    def partial(self):
        return self

    def nodes_if_there(self):
        return self.nodes

    def shard_states(self):
        if self.error:
            raise self.error
        return [ShardState(ShardRef("q", n), Stats(), lease) for n, lease in enumerate(self.leases)]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def collector(clock):
    app = Celery(broker="redis://", set_as_current=False)
    app.conf.lowkiq_lease_seconds = 10.0
    return QueueCollector(app, clock)


def read(collector, looks):
    collector._inspector = looks
    return {s.name: s.value for metric in collector.collect() for s in metric.samples}


def test_a_shard_that_nobody_has_is_unowned(collector):
    assert read(collector, Looks(LeaseState(), LeaseState("node", 1, 1)))["lowkiq_shards_unowned"] == 1


def test_a_shard_whose_owner_is_silent_for_a_lease_time_is_unowned(collector, clock):
    looks = Looks(LeaseState("node", 1, 1))
    found = []
    for clock.now in (1000.0, 1010.0, 1010.6):
        found.append(read(collector, looks)["lowkiq_shards_unowned"])
    looks.leases = [LeaseState("node", 1, 2)]
    found.append(read(collector, looks)["lowkiq_shards_unowned"])
    assert found == [0, 0, 1, 0]


def test_runs_that_are_overdue_are_counted_by_queue(collector):
    looks = Looks(LeaseState("node", 1, 1))
    hangs, runs = (Running(ShardRef("q", 0), ("1",), 1, 90.0, overdue) for overdue in (True, False))
    lanes = tuple(LaneReport("lane", (), 0, run) for run in (hangs, hangs, runs, None))
    node = NodeReport("w", "w-1", 1, 10.0, False, False, ("q",), lanes)
    looks.nodes = (node, replace(node, silent=20.0))
    assert read(collector, looks)["lowkiq_runs_overdue"] == 2
    looks.nodes = ()
    assert read(collector, looks)["lowkiq_runs_overdue"] == 0
    # On a cluster, the master with the reports of nodes is unreachable.
    looks.nodes = None
    assert "lowkiq_runs_overdue" not in read(collector, looks)


def test_without_redis_a_scrape_says_so_and_the_log_says_it_once(collector, caplog):
    looks = Looks()
    looks.error = StoreUnavailable("gone")
    with caplog.at_level(logging.ERROR):
        assert read(collector, looks) == read(collector, looks) == {"lowkiq_redis_up": 0}
    assert [record.getMessage() for record in caplog.records] == ["metrics lack the figures of queues: gone"]
    looks.error = None
    assert read(collector, looks)["lowkiq_redis_up"] == 1


def test_refused_signatures_are_counted_from_zero():
    """No rule sees an increase of a series that begins with one."""
    app = Celery("metrics", broker="redis://localhost:1/0", set_as_current=False)

    @ordered_task(app=app, name="signed")
    def signed(payloads_by_id): ...

    app.finalize()
    metrics = NodeMetrics(app, "w@here", "127.0.0.1", 0)
    (found,) = metrics._unverified.collect()
    counts = {
        sample.labels["queue"]: sample.value for sample in found.samples if sample.name.endswith("_total")
    }
    assert counts["signed"] == 0.0
