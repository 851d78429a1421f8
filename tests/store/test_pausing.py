"""Pauses of queues and shards: nothing of them is claimed; nothing is lost, and what runs goes on."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Disposition, NewJob, QueueSpec, ShardRef
from celery_lowkiq.store.actions import Actions, Pausing
from celery_lowkiq.store.counts import Queries
from celery_lowkiq.store.keys import channel, queue_key, shard_keys
from celery_lowkiq.store.resharding import reshard
from celery_lowkiq.store.script import load

from .helpers import ONE, SHARD, claim, end, ids_of, listening, push, stats, take, waiting

TWO = QueueSpec("two", shards=2, batch_size=1000)


@pytest.fixture
def pausing(store):
    return Pausing(store.client)


def next_due(store):
    return store.next_due([SHARD])[0].next_due


def follow_calls(store, queue):
    """As the pause that the queue remembers now would send them."""
    pause, since = store.client.redis.hmget(queue_key(queue.name), "pause", "paused")
    announced = {"channel": channel(queue.name)}
    return [
        load("apply_queue_pause").call(
            shard_keys(shard), pause=pause, since=since, index=shard.index, **announced
        )
        for shard in queue.shard_refs()
    ]


PAUSES = {
    "shard": (lambda p: p.pause_shard(ONE, 0), lambda p: p.resume_shard(ONE, 0)),
    "queue": (lambda p: p.pause(ONE), lambda p: p.resume(ONE)),
}


@pytest.fixture(params=PAUSES)
def pause_and_resume(request, pausing):
    pause, resume = PAUSES[request.param]
    return lambda: pause(pausing), lambda: resume(pausing)


def test_nothing_of_a_paused_shard_is_claimed_until_it_is_resumed(store, pause_and_resume):
    pause, resume = pause_and_resume
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    assert pause()
    claimed = claim(store, lease)
    assert (claimed.jobs, claimed.next_due, next_due(store)) == ((), None, None)
    assert (stats(store).paused, stats(store).lag, stats(store).length) == (1, 0, 1)
    push(store, "2", ("b", 1), perform_in=1.0)
    assert resume()
    assert next_due(store) == 1.0
    assert ids_of(claim(store, lease)) == ["1", "2"]
    assert stats(store).paused == 0


def test_a_pause_and_its_end_may_be_repeated(pause_and_resume):
    pause, resume = pause_and_resume
    assert [pause(), pause(), resume(), resume()] == [True, False, True, False]


def test_what_runs_goes_on_and_is_settled(store, pause_and_resume):
    pause, resume = pause_and_resume
    for job_id in "abc":
        push(store, job_id, ("x", 1), perform_in=1.0)
    lease = take(store)
    claims = [claim(store, lease, 1) for _ in range(3)]
    pause()
    dispositions = (Disposition.DONE, Disposition.RETRY, Disposition.RETURN)
    for claimed, disposition in zip(claims, dispositions, strict=True):
        assert end(store, lease, claimed, disposition).next_due is None
    assert (stats(store).busy, stats(store).processed, stats(store).length) == (0, 1, 2)
    resume()
    assert sorted(ids_of(claim(store, lease))) == ["b", "c"]


def test_a_claim_from_before_the_pause_is_answered_again(store, pausing):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    first = store.claim(ONE, lease, 1)
    pausing.pause(ONE)
    assert store.claim(ONE, lease, 1).jobs == first.jobs


def test_what_nobody_has_in_hand_goes_back_into_a_paused_shard(store, pausing):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    claim(store, lease)
    pausing.pause_shard(ONE, 0)
    assert claim(store, lease, in_hand=OpenClaims()).jobs == ()
    assert (stats(store).busy, waiting(store, "1")) == (0, [("a", 1)])


def test_a_takeover_recovers_into_a_paused_shard(store, pausing):
    push(store, "1", ("a", 1), perform_in=1.0)
    claim(store, take(store))
    pausing.pause(ONE)
    heir = take(store, owner="heir")
    assert claim(store, heir).jobs == ()
    pausing.resume(ONE)
    assert ids_of(claim(store, heir)) == ["1"]


def test_queue_and_shard_are_apart(store, pausing):
    pausing.pause_shard(TWO, 1)
    pausing.pause(TWO)
    found = Queries(store).paused(TWO)
    assert (found.queue is not None, list(found.shards), stats(store, TWO).paused) == (True, [1], 2)
    pausing.resume(TWO)
    found = Queries(store).paused(TWO)
    assert (found.queue, list(found.shards), stats(store, TWO).paused) == (None, [1], 1)
    pausing.pause(TWO)
    pausing.resume_shard(TWO, 1)
    assert stats(store, TWO).paused == 2


def test_a_repeated_pause_reaches_the_shards_that_were_not_told(store, client, pausing):
    pausing.pause(TWO)
    since = Queries(store).paused(TWO).queue
    client.hdel(shard_keys(ShardRef("two", 1))["meta"], "queue_paused")
    assert pausing.pause(TWO)
    assert (stats(store, TWO).paused, Queries(store).paused(TWO).queue) == (2, since)


def test_shards_follow_the_last_change_in_whatever_order_they_hear_of_it(store, pausing):
    """Of a pause and a resume at the same time, the shards obey the one that the queue remembers."""
    pausing.pause(TWO)
    late = follow_calls(store, TWO)
    pausing.resume(TWO)
    store.client.all(late)
    assert stats(store, TWO).paused == 0


def test_a_resume_is_obeyed_also_when_the_queues_own_key_was_lost(store, client, pausing):
    pausing.pause(TWO)
    client.hdel(queue_key("two"), "pause", "paused")
    assert pausing.resume(TWO)
    assert stats(store, TWO).paused == 0


def test_new_shards_of_a_paused_queue_are_paused(store, pausing):
    push(store, "1", ("x", 1), queue=TWO)
    Actions(store).delete(TWO, ["1"])
    pausing.pause(TWO)
    four = QueueSpec("two", shards=4)
    reshard(store.mover(TWO), TWO, 4)
    store.push(four, [NewJob(str(n), b"x") for n in range(20)])
    assert stats(store, four).paused == 4
    pausing.resume(four)
    assert stats(store, four).paused == 0


def test_a_pause_with_another_count_reaches_all_shards_that_there_are(store, pausing):
    push(store, "1", ("x", 1), queue=TWO)
    pausing.pause(QueueSpec("two", shards=1))
    assert stats(store, TWO).paused == 2


def test_a_resume_wakes_lanes_at_once(store, pause_and_resume):
    pause, resume = pause_and_resume
    push(store, "1", ("a", 1), perform_in=5.0)
    pause()
    with listening(store) as heard:
        resume()
        assert heard() == (SHARD, 5.0)


@pytest.mark.parametrize("index", [-1, 1, "0", True, None, 0.0])
def test_a_shard_that_is_not_there_is_refused(pausing, index):
    with pytest.raises(InvalidCall, match="expected 0 to 0"):
        pausing.pause_shard(ONE, index)
    with pytest.raises(InvalidCall, match="expected 0 to 0"):
        pausing.resume_shard(ONE, index)
