"""A node at work: taking shards, waking, outages, changing hands."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.errors import FormatMismatch, StoreError, StoreUnavailable, SubscriptionLost
from celery_lowkiq.rules.models import Disposition, Lease, LeaseState, QueueSpec, ShardRef
from tests.unit.nodes import SHARDS, Q, once
from tests.waiting import eventually


def test_a_node_takes_the_shards_and_runs_what_waits(node):
    one = node()
    for shard in SHARDS:
        one.store.push(shard, f"job-{shard.index}", announce=False)
    one.start()
    one.ran("job-0", "job-1", "job-2", "job-3")
    assert one.owns() == list(SHARDS)
    assert one.runner.told.count(frozenset()) == 0


def test_a_shard_is_pinned_to_one_lane_as_the_splitter_deals(node):
    one = node().start()
    for turn in range(5):
        for shard in SHARDS:
            one.store.push(shard, f"{shard.index}-{turn}")
    one.ran(*(f"{s.index}-{t}" for s in SHARDS for t in range(5)))
    lanes = {
        job_id[0]: {name for j, name in one.runner.runs if j[0] == job_id[0]} for job_id in one.runner.ids
    }
    assert lanes == {str(n): {f"lane-{n % 2} q/{n}"} for n in range(4)}


def test_an_announcement_wakes_an_idle_lane(node):
    one = node().start()
    eventually(lambda: len(one.owns()) == 4 and one.store.refreshes)
    one.store.push(SHARDS[2], "now")
    one.ran("now")


def test_a_due_time_wakes_a_lane_without_announcement_or_poll(node):
    one = node()
    one.store.push(SHARDS[0], "soon", perform_in=time.time() + 0.4, announce=False)
    one.start()
    eventually(lambda: one.store.refreshes)
    one.ran("soon")


def test_the_poll_is_the_fallback(node):
    one = node(poll_interval=0.1).start()
    eventually(lambda: len(one.owns()) == 4 and one.store.refreshes)
    one.store.push(SHARDS[1], "unheard", announce=False)
    one.ran("unheard")


def test_an_idle_node_asks_nothing_of_the_store_between_polls(node):
    one = node(lease_seconds=60.0).start()
    eventually(lambda: len(one.owns()) == 4)
    one.store.push(SHARDS[0], "settle down")
    one.ran("settle down")
    asked = eventually(lambda: one.store.refreshes)
    one.store.push(SHARDS[1], "later", perform_in=time.time() + 1.0)
    one.ran("later")
    assert one.store.refreshes == asked


@pytest.mark.parametrize("name", ["claim", "settle"])
def test_a_lost_reply_is_asked_for_again_and_nothing_runs_twice(node, name):
    one = node()
    one.store.fail[name] = once(StoreUnavailable("reply lost"), after=True)
    one.store.push(SHARDS[0], "1", announce=False)
    one.start()
    one.ran("1")
    eventually(lambda: one.runner.told)
    assert one.runner.ids == ["1"]
    if name == "claim":
        shard, request = one.store.claims[0]
        assert one.store.claims[1] == (shard, request)


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(node, caplog):
    caplog.set_level(logging.WARNING)
    one = node().start()
    eventually(lambda: len(one.owns()) == 4)
    away = threading.Event()
    away.set()

    def unavailable(after):
        if away.is_set():
            raise StoreUnavailable("Redis is not available: gone")

    failed = []
    for name in ("claim", "renew", "wait_pushed", "subscribe", "next_due", "observe"):
        one.store.fail[name] = lambda after, name=name: (failed.append(name), unavailable(after))
    one.store.push(SHARDS[0], "1")
    eventually(lambda: failed.count("renew") > 2 and failed.count("subscribe") > 2)
    away.clear()
    one.ran("1")
    eventually(lambda: "Redis is back" in caplog.text)
    assert caplog.text.count("Ordered queues wait until it is back") == 1
    assert caplog.text.count("Redis is back") == 1


def test_a_subscription_that_another_master_carries_on_is_no_outage(node, caplog):
    """It was logged as one of all queues, whose end came in a moment, beside the line of its master."""
    caplog.set_level(logging.WARNING)
    one = node().start()
    lost = []

    def lose(after):
        if len(lost) < 3:
            lost.append(1)
            raise SubscriptionLost("Redis is not available: the master of the subscription is unreachable")

    one.store.fail["wait_pushed"] = lose
    eventually(lambda: len(lost) == 3)
    one.store.push(SHARDS[0], "1")
    one.ran("1")
    assert "Redis" not in caplog.text


def test_a_shard_that_changed_hands_is_left_alone(node, caplog):
    one = node()
    one.start_with_run()
    one.store.steal(SHARDS[0])
    one.store.push(SHARDS[0], "2")
    one.gate.set()
    one.store.push(SHARDS[2], "same lane")
    one.ran("same lane")
    assert one.store.settled == [("same lane", Disposition.DONE)]
    assert "changed hands" in caplog.text
    assert one.runner.told == [frozenset({"same lane"})]


def test_requests_are_numbered_on_under_a_lease_that_was_lost_and_came_back(node):
    """Redis answers a smaller number as an outdated request, with nothing."""
    one = node()
    store, shard = one.store, SHARDS[0]
    one.start()
    for number in range(3):
        store.push(shard, f"before {number}")
        one.ran(f"before {number}")
    lease = store.leases[shard]
    store.steal(shard)
    eventually(lambda: "q/0" not in one.shards())
    store.leases[shard] = lease
    eventually(lambda: "q/0" in one.shards())
    assert store.leases[shard].epoch == lease.epoch
    store.push(shard, "after")
    one.ran("after")
    requests = [request for claimed, request in store.claims if claimed == shard]
    assert requests == sorted(set(requests))


def test_a_silent_owner_loses_its_shards_after_1_05_lease_times(node):
    one = node()
    for shard in SHARDS:
        one.store.leases[shard] = LeaseState("dead", 7, 3)
    began = time.monotonic()
    one.start()
    eventually(lambda: len(one.owns()) == 4)
    assert time.monotonic() - began >= 1.05 * 0.5
    assert all(one.store.leases[shard].epoch == 8 for shard in SHARDS)


def test_a_living_owner_keeps_its_shards(node):
    one = node()
    alive = threading.Event()
    looks = []

    def owner_moves_its_counter(after):
        looks.append(1)
        if not alive.is_set():
            for shard in SHARDS:
                state = one.store.leases[shard]
                one.store.leases[shard] = LeaseState("other", 7, state.counter + 1)

    for shard in SHARDS:
        one.store.leases[shard] = LeaseState("other", 7, 1)
    one.store.fail["observe"] = owner_moves_its_counter
    one.start()
    eventually(lambda: len(looks) > 12)
    assert one.owns() == []
    alive.set()
    eventually(lambda: len(one.owns()) == 4)


def test_nothing_is_claimed_on_a_lease_that_could_not_be_renewed(node):
    one = node().start()
    eventually(lambda: len(one.owns()) == 4)
    failures = []

    def unavailable(after):
        failures.append(1)
        raise StoreUnavailable("no renewal")

    one.store.fail["renew"] = unavailable
    held = one.runtime._ownership._table.owned()
    eventually(lambda: not any(lease.may_claim(time.monotonic()) for lease in held))
    one.store.push(SHARDS[0], "1")
    seen = len(failures)
    eventually(lambda: len(failures) > seen + 3)
    assert one.runner.ids == []
    del one.store.fail["renew"]
    one.ran("1")


def test_a_queue_of_another_format_is_not_served_and_the_others_are(node, caplog):
    other = QueueSpec("other", shards=1)
    one = node(queues=[Q, other])
    acquire = one.store.acquire

    def mismatch(one, owner):
        if one.queue == Q:
            raise FormatMismatch("stored in format 7")
        return acquire(one, owner)

    one.store.acquire = mismatch
    one.store.push(ShardRef("other", 0), "1", announce=False)
    one.start()
    one.ran("1")
    eventually(lambda: caplog.text.count("queue q is not served") == 1)
    assert "format 7" in caplog.text


def test_a_shard_of_another_format_is_named_alone(node, caplog):
    one = node()
    acquire = one.store.acquire

    def mismatch(watch, owner):
        if watch.shard == SHARDS[1]:
            raise StoreError("the shard is stored in format 3")
        return acquire(watch, owner)

    one.store.acquire = mismatch
    one.start()
    eventually(lambda: "q/1 is not served: the shard is stored in format 3" in caplog.text)
    assert "queue q" not in caplog.text


def test_the_snapshot_says_what_runs_where(node):
    one = node()
    one.start_with_run(shard=SHARDS[3])
    eventually(lambda: len(one.owns()) == 4)
    first, second = one.runtime.snapshot()["lanes"]
    assert first == {"name": "lane-0", "shards": ["q/0", "q/2"], "running": None}
    assert (second["name"], second["shards"]) == ("lane-1", ["q/1", "q/3"])
    assert second["running"]["seconds"] >= 0
    assert {**second["running"], "seconds": 0} == {
        "shard": "q/3",
        "ids": ["1"],
        "seconds": 0,
        "overdue": False,
    }
    one.gate.set()


def test_the_store_is_told_which_claims_are_in_hand(node):
    one = node(lanes=1, window=1, queues=[QueueSpec("q", shards=1)])
    for number in range(3):
        one.store.push(SHARDS[0], str(number), announce=False)
    one.start()
    one.ran("0", "1", "2")
    assert one.store.in_hands[:3] == [OpenClaims(), OpenClaims(1, (1,)), OpenClaims(2, (2,))]


def test_a_job_whose_settle_failed_for_good_is_not_in_hand(node):
    one = node(lanes=1, queues=[QueueSpec("q", shards=1)])
    one.store.fail["settle"] = once(StoreError("ERR of its own"))
    one.store.push(SHARDS[0], "1", announce=False)
    one.start()
    eventually(lambda: one.runner.ids)
    one.runtime._on_announcement(SHARDS[0], 1.0)
    eventually(lambda: OpenClaims(1) in one.store.in_hands)


def test_an_acquire_whose_reply_was_lost_is_not_waited_for(node):
    one = node(lease_seconds=60.0)
    acquire = one.store.acquire
    lost = []

    def loses_one_reply(wish, owner):
        known = one.store.leases.get(wish.shard)
        lease = Lease(wish.shard, "me", 1) if known else acquire(wish, owner)
        if not lost:
            lost.append(lease.shard)
            raise StoreUnavailable("reply lost")
        return lease

    one.store.acquire = loses_one_reply
    one.start()
    eventually(lambda: len(one.runtime._ownership._table.owned()) == 4)


@pytest.mark.parametrize("name", ["renew", "observe", "subscribe"])
def test_a_refusal_of_redis_is_no_crash(node, name, caplog):
    """Such as an ACL without a right that the node needs: people mend it, and all goes on."""
    one = node()
    refused = []

    def refuse(after):
        refused.append(1)
        if len(refused) < 3:
            raise StoreError("Redis refused a command: NOPERM")

    one.store.fail[name] = refuse
    one.store.push(SHARDS[0], "1", announce=False)
    one.start()
    eventually(lambda: len(refused) >= 3)
    one.ran("1")
    assert one.host.stops == []
    assert "NOPERM" in caplog.text


def test_an_outage_is_no_silence_of_the_owner(node):
    """While nobody could look, nobody could renew: the living owner gets its time again."""
    one = node()
    looks, away = [], threading.Event()

    def observe(after):
        looks.append(time.monotonic())
        if away.is_set():
            raise StoreUnavailable("gone")

    for shard in SHARDS:
        one.store.leases[shard] = LeaseState("other", 7, 3)
    one.store.fail["observe"] = observe
    one.start()
    eventually(lambda: looks)
    away.set()
    eventually(lambda: looks[-1] - looks[0] > 2 * 0.5)
    away.clear()
    seen = len(looks)
    first = eventually(lambda: len(looks) > seen and looks[seen])
    eventually(lambda: len(one.owns()) == 4)
    assert time.monotonic() - first >= 1.05 * 0.5 - 0.05


def test_a_run_that_takes_too_long_raises_one_alarm(node):
    one = node(queues=[QueueSpec("q", shards=4, max_run=0.2)])
    one.store.push(SHARDS[1], "fast", announce=False)
    one.start_with_run("slow")
    eventually(lambda: one.host.alarms)
    beats = one.store.leases[SHARDS[1]].counter
    eventually(lambda: one.store.leases[SHARDS[1]].counter > beats + 3)
    ((run, waiting),) = one.host.alarms
    assert (run.ids, run.max_run, waiting) == (("slow",), 0.2, 0)
    assert run.seconds >= 0.2, "rounded to ms"
    assert [lane["running"]["overdue"] for lane in one.runtime.snapshot()["lanes"] if lane["running"]] == [
        True
    ]
    one.gate.set()
    one.ran("slow")
