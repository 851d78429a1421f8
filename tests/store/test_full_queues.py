"""How many jobs may wait, and what becomes of the others."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.errors import QueueFull, StoreError
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, shard_of
from celery_lowkiq.rules.policies import Policies, WhenFull
from celery_lowkiq.store.push import Sender, push_call, report_dropped
from tests.bound import Pausing
from tests.store.shard import Shard


@pytest.fixture
def told(store):
    """The records of calls that the store tells of."""
    found = []
    store.pusher.dropped = lambda queue, calls: found.extend(call.data for call in calls)
    return found


def recorded(shard):
    return shard.store.client.commands([("ZRANGE", "lowkiq:1:{orders:0}:calls", 0, -1)])[0]


def test_a_full_shard_refuses_and_stores_nothing(store):
    shard = Shard(store, max_length=2)
    shard.push("1")
    with pytest.raises(QueueFull, match="1 jobs wait in the shard, and the task's max_length allows 2"):
        store.push(shard.spec, [Call("2", b"x"), Call("3", b"x")])
    assert shard.queries.stats(shard.spec).length == 1


def test_a_stale_call_needs_no_place_also_by_the_time_of_its_sender(store):
    shard = Shard(store, max_length=1, drop_stale=3600.0)
    shard.push("2", score=100)
    shard.run()
    shard.push("1")
    shard.push("2", sent=99.0)
    assert shard.waiting("2") is None
    with pytest.raises(QueueFull):
        shard.push("2", sent=101.0)


def test_merging_is_always_allowed(store):
    shard = Shard(store, max_length=1)
    shard.push("1", b"a", 1)
    shard.push("1", b"b", 2)
    assert shard.payloads() == [b"a", b"b"]


def test_the_newest_is_dropped(store):
    shard = Shard(store, max_length=1, when_full=WhenFull.DROP_NEWEST)
    shard.push("1")
    shard.push("2")
    assert (shard.waiting("2"), shard.dropped) == (None, 1)


def test_the_oldest_gives_way(store):
    shard = Shard(store, max_length=2, when_full=WhenFull.DROP_OLDEST)
    for n in (1, 2, 3):
        shard.push(str(n), perform_in=float(n))
    assert shard.waiting("1") is None
    assert shard.waiting("3") is not None
    assert shard.dropped == 1


def test_what_waits_of_paused_ids_has_its_place(store):
    shard = Shard(store, max_length=1)
    shard.push("1")
    Pausing(store.client).switch_ids(shard.spec, ["1"], paused=True)
    with pytest.raises(QueueFull):
        shard.push("2")


def test_the_calls_of_a_job_that_gave_way_are_told(store, told):
    shard = Shard(store, max_length=1, when_full=WhenFull.DROP_OLDEST)
    store.push(shard.spec, [Call("1", b"x", record=b"first")])
    store.push(shard.spec, [Call("2", b"x", record=b"second")])
    assert told == [b"first"]
    assert len(recorded(shard)) == 1


def test_a_call_that_was_dropped_is_told_and_leaves_no_record(store, told):
    shard = Shard(store, max_length=1, when_full=WhenFull.DROP_NEWEST)
    store.push(shard.spec, [Call("1", b"x", record=b"first"), Call("2", b"x", record=b"second")])
    assert told == [b"second"]
    assert len(recorded(shard)) == 1


class TestStaleCalls:
    """One takes no place: it would not run."""

    def full_shard(self, store, when_full):
        shard = Shard(store, max_length=1, when_full=when_full, drop_stale=1000.0)
        shard.push("done", b"5", 5)
        shard.run()
        shard.push("live", b"x")
        return shard

    @pytest.mark.parametrize("when_full", WhenFull)
    @pytest.mark.parametrize("record", [b"a call", None])
    def test_no_job_gives_way_to_one_and_none_is_refused(self, store, told, when_full, record):
        shard = self.full_shard(store, when_full)
        store.push(shard.spec, [Call("done", b"3", 3, record=record)])
        assert ([job.id for job in shard.claim()], shard.dropped) == (["live"], 1)
        assert told == ([record] if record else [])
        assert recorded(shard) == []

    def test_an_id_of_which_another_call_is_newer_is_new(self, store):
        shard = self.full_shard(store, WhenFull.REFUSE)
        for scores in ([6], [None], [3, 6], [6, 3]):
            with pytest.raises(QueueFull):
                store.push(shard.spec, [Call("done", b"%d" % n, score) for n, score in enumerate(scores)])
        assert shard.dropped == 0

    def test_one_that_meets_a_waiting_job_is_dropped_by_its_claim(self, store, told):
        shard = self.full_shard(store, WhenFull.REFUSE)
        shard.run()
        shard.push("done", b"6", 6)
        store.push(shard.spec, [Call("done", b"3", 3, record=b"a call")])
        (job,) = shard.claim()
        assert (job.unwanted, told) == (1, [])


@pytest.mark.parametrize("when_full", [WhenFull.DROP_NEWEST, WhenFull.DROP_OLDEST])
def test_a_push_whose_reply_was_lost_hears_it_when_it_is_repeated(store, when_full):
    shard = Shard(store, max_length=1, when_full=when_full)
    jobs = [Call(job_id, b"x", record=b"a call") for job_id in ("1", "2|é", "3")]
    call = push_call(shard.spec, shard.lease.shard, Sender(), jobs)
    reply, *repeats = [store.client.call(call) for _ in range(3)]
    assert isinstance(reply, list)
    assert repeats == [reply, reply]
    assert shard.dropped == 2


def test_a_repeated_push_spares_calls_that_were_running_and_wait_again(store, told):
    """Their job was processed when the push dropped what waited of its id."""
    shard = Shard(store, max_length=1, when_full=WhenFull.DROP_OLDEST)
    store.push(shard.spec, [Call("1", b"running", 1.0, record=b"running")])
    (job,) = shard.claim()
    store.push(shard.spec, [Call("1", b"waiting", 2.0, record=b"waiting")])
    second = [Call("2", b"x", perform_in=9e9)]
    call = push_call(shard.spec, shard.lease.shard, Sender(), second)
    replies = [store.client.call(call)]
    shard.end(job, Disposition.RETRY)
    replies.append(store.client.call(call))
    turn, again = {shard.lease.shard: second}, {shard.lease.shard: replies[1]}
    report_dropped(store.client, shard.spec, turn, again, set(), store.pusher.dropped)
    assert replies[1] == replies[0]
    assert told == [b"waiting"]
    assert len(recorded(shard)) == 1


def test_they_are_told_also_when_another_shard_refuses(store, told, client):
    jobs = [Call(str(n), b"x", record=b"%d" % n) for n in range(20)]
    two = QueueSpec("two", shards=2, policies=Policies(max_length=2, when_full=WhenFull.DROP_NEWEST))
    store.push(two, jobs[:1])
    client.set("lowkiq:1:{two:1}:due", "no sorted set")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.push(two, jobs)
    assert len(told) == sum(shard_of(job.id, 2) == 0 for job in jobs) - 1


def test_a_repeated_push_is_refused_no_second_time(store):
    """A job that was admitted is not asked again."""
    shard = Shard(store, max_length=1)
    shard.push("1")
    assert shard.run()
    shard.push("2")
    assert shard.waiting("2") is not None
