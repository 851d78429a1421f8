"""Heartbeats and reports of nodes, and samples of queues: ``store/node_reports.py``."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import Call, QueueSpec, ShardRef
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.rules.views import DAY, Counters, LaneReport, NodeReport, NodeUpdate, Running, Sample, Wait
from celery_lowkiq.store import node_reports
from celery_lowkiq.store.keys import history_key, report_key, reports_key, shard_keys
from celery_lowkiq.store.node_reports import SHARDS_FIELDS
from tests.bound import Diagnosis
from tests.store.helpers import ONE, SHARD, claim, end, push, take

OWNER = "w\N{SNOWMAN}{}@host-0123"
SHARDS = tuple(ShardRef("q", index) for index in (0, 1, 2, 5))
RUNNING = Running(SHARDS[1], ("1", "a\udcff"), 7, 1.5, True, 0.5, 0.2)
LANES = (
    LaneReport("lane-0", (ShardRef("orders", 3), *SHARDS), 9, RUNNING, 0.25),
    LaneReport("lane-1", (), 0),
)
WAITS = (Wait(SHARDS[2:], 2.5), Wait((ShardRef("orders", 7), SHARDS[0]), 10.4))
REPORT = NodeReport(
    OWNER.rpartition("-")[0], OWNER, 77, 10.0, True, False, ("orders", "q"), LANES, waits=WAITS
)


@pytest.fixture
def diagnosis(store):
    return Diagnosis(store.client)


def tell(store, report=REPORT, uptime=5.0, **news):
    return store.beat([], report.owner, 2, 1, NodeUpdate(report, uptime, **news)).reply


def test_a_report_is_read_as_it_was_told(store):
    now = tell(store).now
    (found,) = store.nodes()
    assert replace(found, started_at=0.0, seen_at=0.0, silent=0.0) == REPORT
    assert found.seen_at == now
    assert found.started_at == pytest.approx(now - 5)
    assert found.silent < 5
    assert found.alive


def test_due_jobs_of_several_shards_are_counted(store):
    queue = replace(ONE, shards=3)
    ids = [next(i for n in range(99) if queue.shard_of(i := f"id{n}").index == index) for index in range(3)]
    for job_id in (*ids, *(f"{one}-later" for one in ids)):
        push(store, job_id, ("a", 1), queue=queue, **({"delay": 900.0} if "later" in job_id else {}))
    store.push(queue, [Call("urgent", b"1", priority=5)])
    shards = queue.shard_refs()
    found = [store.count_due([shard]) for shard in shards]
    assert sum(found) == store.count_due(shards) == 4
    assert max(found) == 2
    assert store.count_due([]) == 0


def test_the_start_of_a_node_stays_what_it_was(store):
    tell(store, uptime=100.0)
    tell(store, replace(REPORT, quiet=False), uptime=900.0)
    (found,) = store.nodes()
    assert found.seen_at - found.started_at < 200
    assert not found.quiet


def test_a_node_that_is_silent_for_its_lease_is_not_alive(store, client):
    now = tell(store).now
    client.hset(report_key(OWNER), "at", now - 11)
    (found,) = store.nodes()
    assert 11 <= found.silent < 30
    assert not found.alive


def test_what_ended_is_forgotten(store, client):
    tell(store)
    tell(store, replace(REPORT, owner="other-1"))
    store.forget_report(OWNER)
    assert [found.name for found in store.nodes()] == ["other"]
    # Another one that went without a word an hour ago.
    client.zadd(reports_key(), {"old-1": time.time() - 3601})
    tell(store)
    assert client.zscore(reports_key(), "old-1") is None
    assert 3000 < client.ttl(report_key("other-1")) <= 3600
    assert 3000 < client.ttl(reports_key()) <= 3600


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '"x"', "[" * 10000, json.dumps({"pid": 1, "lease": 1, "lanes": 7}), "\xff"]
)
def test_what_no_node_has_written_is_not_shown(store, client, diagnosis, text):
    tell(store)
    client.hset(report_key(OWNER), "text", text)
    assert store.nodes() == []


def test_many_planted_shards_are_not_made(store, client):
    tell(store)
    text = json.loads(client.hget(report_key(OWNER), "text"))
    text["lanes"][0]["shards"] = {"q": "0-99999999999999"}
    client.hset(report_key(OWNER), "text", json.dumps(text))
    (found,) = store.nodes()
    assert len(found.lanes[0].shards) == 1000


def test_a_refused_report_does_not_disturb_the_heartbeat(store, client):
    client.set(reports_key(), "planted")
    heard = store.beat(["orders"], "me", 4, 1, NodeUpdate(REPORT, 1.0))
    assert heard.members == [{"me": (4, 1)}]
    assert isinstance(heard.reply, StoreError)


def test_a_queue_is_counted_with_the_report_and_kept_with_the_next(store):
    two = QueueSpec("orders", shards=2)
    for shard in range(2):
        lease = take(store, two, shard)
        push(store, {0: "1", 1: "0"}[shard], ("a", 1), perform_in=1.0, queue=two)
        end(store, lease, claim(store, lease), queue=two)
    told = tell(store, counted=(two, QueueSpec("empty", shards=1)))
    found = dict(told.samples)
    # On a cluster, the masters with the queues' own keys tell the time.
    assert [one.at for one in found.values()] == pytest.approx([told.now, told.now], abs=60)
    at = found["orders"].at
    assert found == {"orders": Counters(at, (0, 2)), "empty": Counters(found["empty"].at, (0,))}
    assert tell(store, samples=told.samples).samples == ()
    found, _ = node_reports.histories(store.client, [two, QueueSpec("other")])
    assert found == {"orders": (Sample(at, 2, 0),), "other": ()}


def test_a_slot_has_one_sample_and_the_ring_an_hour(store, client):
    now = time.time() // 10 * 10
    for at in range(int(now) - 7200, int(now), 10):
        tell(store, samples=(("orders", Counters(at + 1.5, (at,), 1)),))
    tell(store, samples=(("orders", Counters(now - 10 + 3, (7,), 7)),))
    assert client.hlen(history_key("orders")) == 360 + len(SHARDS_FIELDS)
    found = node_reports.histories(store.client, [ONE])[0]["orders"]
    assert 355 <= len(found) <= 360
    assert found == tuple(sorted(found))
    assert found[-1] == Sample(now - 10 + 1.5, int(now) - 10, 1)
    assert found[0].at > now - 3600


def test_a_day_has_a_sample_in_ten_minutes_in_at_most_11_kb(store, client):
    last = time.time() // 600 * 600
    for ago in range(172_800, -1, -600):
        at = last - ago
        tell(store, samples=(("orders", Counters(at + 1.234, (int(at) * 10**6,), int(at), 123.46)),))
    key = history_key("orders", DAY)
    assert client.hlen(key) == 144
    assert client.memory_usage(key, samples=0) <= 11 * 1024
    assert 86_400 < client.ttl(key) <= 87_000
    found = node_reports.histories(store.client, [ONE], DAY)[0]["orders"]
    assert 143 <= len(found) <= 144
    assert found[-1] == Sample(last + 1.234, int(last) * 10**6, int(last), 123.5)
    assert {round(later.at - earlier.at) for earlier, later in pairwise(found)} == {600}


def test_a_slot_keeps_its_counters_and_the_larger_lag(store):
    begin = time.time() // 10 * 10
    for after, processed, lag in ((1.0, 5, 0.5), (2.0, 6, 7.25), (3.0, 7, 3.0)):
        tell(store, samples=(("orders", Counters(begin + after, (processed,), 0, lag)),))
    assert node_reports.histories(store.client, [ONE]) == ({"orders": (Sample(begin + 1.0, 5, 0, 7.2),)}, {})


@pytest.mark.parametrize("where", ["plain", "prioritized"])
def test_the_lag_is_that_of_the_job_that_is_due_for_longest(store, client, where):
    queue = QueueSpec("orders", shards=2, policies=Policies(priority=5 if where == "prioritized" else 0))
    now = tell(store).now
    for job_id, due in (("4", now - 50.0), ("1", now - 90.0), ("2", now + 90.0)):
        push(store, job_id, ("a", 1), perform_in=due, queue=queue)
    assert lag_of(store, queue) == pytest.approx(90.0, abs=5)
    # What runs is not late, and what waits behind it cannot start.
    lease = take(store, queue, queue.shard_of("1").index)
    claim(store, lease)
    push(store, "1", ("a", 2), perform_in=now - 70.0, queue=queue)
    assert lag_of(store, queue) == pytest.approx(50.0, abs=5)
    client.hset(shard_keys(queue.shard_of("4"))["meta"], "paused", "5")
    assert lag_of(store, queue) == 0.0


def lag_of(store, queue):
    return dict(tell(store, counted=(queue,)).samples)["orders"].lag


def test_counters_by_shard_give_the_jobs_a_minute(store, client, diagnosis):
    def per_minute():
        return [one.jobs_per_minute for one in diagnosis.shards(QueueSpec("orders", shards=2))]

    client.hset(shard_keys(SHARD)["meta"], mapping={"processed": 100})
    now = tell(store).now
    assert per_minute() == [None, None]
    for processed in (40, 99):
        # A minute that has counters keeps them.
        tell(store, samples=(("orders", Counters(now - 65, (processed, 0))),))
    assert per_minute() == [pytest.approx(60 * 60 / 65, rel=0.1), 0.0]
    for minutes in range(1, 60):
        tell(store, samples=(("orders", Counters(now - 65 - 60 * minutes, (0, 0))),))
    assert client.hlen(history_key("orders")) == 60 + len(SHARDS_FIELDS)


@pytest.mark.parametrize("value", ["", "1 2", "1 x 1", "1 2 1,", "1 2 -1", "1 2 1.5", "1 2 " + "9" * 5000])
def test_planted_counters_by_shard_are_not_shown(store, client, diagnosis, value):
    client.hset(history_key("orders"), "shards 0", value)
    assert diagnosis.shards(ONE)[0].jobs_per_minute is None


def test_planted_samples_are_not_shown(store, client):
    tell(store, samples=(("orders", Counters(time.time(), (1,))),))
    values = ("", "x", "1 2 3", "1 1.1.1 2 3", "1 -5 2 3", "9 " * 4 * 5000, "1 nan 2 3")
    client.hset(history_key("orders"), mapping={f"planted {n}": value for n, value in enumerate(values)})
    assert len(node_reports.histories(store.client, [ONE])[0]["orders"]) == 1


def test_since_when_a_shard_has_its_owner_and_since_when_none(store, client):
    def since():
        return float(client.hget(shard_keys(SHARD)["lease"], "since"))

    push(store, "1", ("a", 1), perform_in=9e9)
    lease = take(store)
    taken = since()
    assert time.time() - 60 < taken < time.time() + 60
    assert store.renew([lease]) == [lease]
    assert since() == taken
    store.release(lease)
    assert since() > taken


def test_a_ticket_is_taken_once_and_forgotten_after_a_minute(store, client):
    assert store.take("one", "me") == "me"
    assert store.take("one", "other") == "me"
    assert store.take("two", "other") == "other"
    assert all(0 < client.ttl(key) <= 60 for key in client.scan_iter())
