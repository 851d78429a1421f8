"""What a node tells its meter."""

from __future__ import annotations

import time

from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.worker.outage import OutageTracker
from tests.unit.meters import Tally
from tests.unit.nodes import SHARDS, once
from tests.waiting import eventually


def test_runs_and_renewals(node):
    tally = Tally()
    one = node(meter=tally).start()
    before = time.time()
    one.store.push(SHARDS[0], "a")
    one.ran("a")
    ((job_id, began_at, seconds),) = tally.runs
    assert job_id == "a"
    assert before <= began_at <= time.time()
    assert 0 <= seconds < 60
    # Each lease, at each renewal.
    eventually(lambda: tally.renewals >= 2 * len(SHARDS))
    assert (tally.losses, tally.refusals, tally.outages) == (0, 0, 0)


def test_a_lost_lease_is_counted_once_and_one_given_up_is_not(node):
    tally = Tally()
    one = node(meter=tally).start()
    eventually(lambda: len(one.owns()) == len(SHARDS))
    one.store.steal(SHARDS[0])
    eventually(lambda: tally.losses == 1)
    one.runtime.drain()
    assert one.runtime.join(10)
    assert tally.losses == 1


def test_a_refused_command_is_counted(node):
    tally = Tally()
    one = node(meter=tally).start()
    one.store.fail["claim"] = once(StoreError("WRONGTYPE"))
    one.store.push(SHARDS[0], "a")
    eventually(lambda: tally.refusals == 1)
    assert tally.outages == 0


def test_an_outage_is_counted_once_and_each_question_in_it():
    tally = Tally()
    outage = OutageTracker(SystemClock(), tally)
    for _ in range(2):
        outage.failed(StoreUnavailable("gone"))
        outage.failed(StoreUnavailable("gone"))
        outage.recovered()
        outage.request_started()
    assert (tally.refusals, tally.outages) == (4, 2)
