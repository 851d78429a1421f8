"""Tests of ``worker/members.py``."""

from __future__ import annotations

import threading
import time

import pytest

from celery_lowkiq.rules.errors import LoginRefused, MasterDenies, StoreError, StoreFull, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.shares import lease_splitter
from celery_lowkiq.rules.views import NodeReport, current
from tests.unit.nodes import SHARDS, Q, part
from tests.waiting import eventually

OWNER = "w@host-0123"


@pytest.mark.parametrize("splitter", [lease_splitter, part(1, 0)])
def test_a_report_tells_lanes_shards_and_what_they_run(node, splitter):
    one = node(owner=OWNER, splitter=splitter)
    gate = threading.Event()
    one.runner.act = lambda batch: gate.wait(30) and None
    one.store.push(SHARDS[1], "runs", announce=False)
    began = time.monotonic()
    one.start()

    def running():
        report = one.store.reports.get(OWNER)
        return report and report.running(SHARDS[1]) and report

    report = eventually(running)
    assert (report.name, report.queues, report.quiet) == ("w@host", ("q",), False)
    assert [lane.shards for lane in report.lanes] == [SHARDS[::2], SHARDS[1::2]]
    run = report.running(SHARDS[1])
    assert (run.ids, run.count) == (("runs",), 1)
    assert 0 <= run.seconds <= time.monotonic() - began
    assert report.lane_of(SHARDS[1]).running == run
    gate.set()
    eventually(lambda: one.store.reports[OWNER].running(SHARDS[1]) is None)


def test_a_quiet_node_serves_nothing_until_it_is_told_otherwise(node):
    one = node(owner=OWNER, splitter=lease_splitter).start()
    eventually(lambda: len(one.owns(OWNER)) == 4)
    one.runtime.quiet(True)
    eventually(lambda: one.owns(OWNER) == [])
    report = eventually(lambda: (r := one.store.reports[OWNER]).quiet and r)
    assert report.queues == ()
    one.runtime.serve(["q"])
    one.store.push(SHARDS[0], "waits")
    one.runtime.quiet(False)
    one.ran("waits")
    eventually(lambda: one.store.reports[OWNER].queues == ("q",) and len(one.owns(OWNER)) == 4)
    assert not one.store.reports[OWNER].quiet


def test_a_node_that_stops_reports_until_its_last_run_ended_and_is_forgotten_then(node):
    one = node(owner=OWNER)
    gate = threading.Event()
    one.runner.act = lambda batch: gate.wait(30) and None
    one.store.push(SHARDS[1], "runs", announce=False)
    one.start()
    eventually(one.runtime.busy)
    one.runtime.drain()
    eventually(lambda: one.store.reports[OWNER].stopping)
    gate.set()
    assert one.runtime.join(10)
    assert OWNER not in one.store.reports


def test_a_refused_report_is_said_once_and_disturbs_nothing(node, caplog):
    one = node()

    def refuse(after):
        raise StoreError("no")

    one.store.fail["report"] = refuse
    one.start()
    eventually(lambda: len(one.owns()) == 4)
    one.store.push(SHARDS[0], "1")
    one.ran("1")
    eventually(lambda: "the report of this node is not stored: no" in caplog.messages)
    del one.store.fail["report"]
    eventually(lambda: one.store.reports)
    assert len([text for text in caplog.messages if "the report of this node is not stored" in text]) == 1


@pytest.mark.parametrize(
    "refusal, is_logged",
    [(StoreUnavailable, False), (LoginRefused, False), (StoreFull, True), (MasterDenies, True)],
)
def test_the_outage_of_a_master_is_logged_once_and_not_again_for_its_report(node, caplog, refusal, is_logged):
    """The line of a master that refused the login was followed by its text as that of a report."""
    one, refused = node(), threading.Event()

    def refuse(after):
        refused.set()
        raise refusal("no")

    one.store.fail["report"] = refuse
    one.start()
    assert refused.wait(10)
    one.runtime.drain()
    assert one.runtime.join(10)
    assert ("the report of this node is not stored: no" in caplog.messages) is is_logged


def test_a_report_that_cannot_be_removed_does_not_keep_a_node(node):
    one = node()

    def refuse(after):
        raise StoreError("no")

    one.store.fail["forget_report"] = refuse
    one.start()
    eventually(lambda: len(one.owns()) == 4)
    one.runtime.drain()
    assert one.runtime.join(10)
    assert one.owns() == []


def test_very_many_shards_are_counted_not_listed(node):
    many = QueueSpec("many", shards=4096)
    one = node(owner=OWNER, queues=[many], lease_seconds=5.0).start()
    report = eventually(
        lambda: (
            (r := one.store.reports.get(OWNER)) and sum(lane.shard_count for lane in r.lanes) == 4096 and r
        )
    )
    assert [len(lane.shards) for lane in report.lanes] == [500, 500]


def test_queues_are_counted_once_a_slot_where_the_first_shard_is(node):
    first = node(splitter=part(2, 0), lease_seconds=0.5).start()
    second = node(splitter=part(2, 1), lease_seconds=0.5, store=first.store, owner="other").start()
    eventually(lambda: any(news.samples for news in first.store.news))
    eventually(lambda: second.store.reports.get("other"))
    counted = [(news.report.owner, news.counted) for news in first.store.news if news.counted]
    assert {(owner, queues) for owner, queues in counted} == {("me", (Q,))}
    assert len([news for news in first.store.news if news.samples]) <= len(counted)


def report(name, owner, started_at, silent):
    return NodeReport(name, owner, 1, 10.0, False, False, (), (), started_at, 0.0, silent)


def test_a_start_that_was_followed_by_another_is_not_shown():
    dead, alive = report("b", "b-1", 1.0, 60.0), report("b", "b-2", 2.0, 1.0)
    other = report("a", "a-1", 5.0, 60.0)
    assert current([alive, dead, other]) == (other, alive)


def test_what_it_runs_of_a_shard_that_it_does_not_work():
    assert report("a", "a-1", 1.0, 1.0).running(ShardRef("q", 0)) is None
