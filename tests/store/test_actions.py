"""Tests of ``store/actions.py``."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, ShardRef
from celery_lowkiq.store.actions import DEAD, FAILED
from celery_lowkiq.store.keys import SHARD_KEYS, channel, queue_key, shard_keys
from celery_lowkiq.store.listings import Listing, ListingReader
from celery_lowkiq.store.resharding import reshard
from celery_lowkiq.store.script import load
from tests.bound import Actions, Pausing, Queries
from tests.store.helpers import ONE, SHARD, claim, dead, end, ids_of, listening, push, stats, take, waiting

# What operators do, in bounded steps; nothing that arrives in between is lost.

TWO = QueueSpec("two", shards=2, batch_size=1000)


@pytest.fixture
def actions(store):
    return Actions(store.client)


def fail_all(store, queue=TWO, disposition=Disposition.RETRY):
    for shard in range(queue.shards):
        lease = take(store, queue, shard, owner=f"failing-{disposition}")
        while (claimed := claim(store, lease, 1000)).jobs:
            end(store, lease, claimed, disposition, queue=queue, delay=1e6, error=b"boom")


def fill(store, count, queue=TWO):
    store.push(queue, [Call(str(n), b"x", 1, 1.0) for n in range(count)])


def test_run_now_all(store, actions):
    store.push(TWO, [Call(str(n), b"x", 1, 9e9) for n in range(2500)])
    seen = []
    assert actions.run_now_all(TWO, seen.append) == 2500
    assert seen[-1] == 2500
    assert len(seen) > 1
    assert Queries(store.client).jobs(TWO, Listing("perform_in", minimum=8e9)).items == ()


def test_run_now_all_wakes_workers(store, actions):
    push(store, "1", ("x", 1), perform_in=9e9)
    with listening(store) as heard:
        actions.run_now_all(ONE)
        assert heard()[1] < 9e9


def test_delete_leaves_the_others_and_what_is_processed(store, actions):
    lease = take(store)
    push(store, "runs", ("x", 1), perform_in=1.0)
    claimed = claim(store, lease)
    for job_id in ("a", "b", "runs"):
        push(store, job_id, ("y", 2), perform_in=1.0)
    assert actions.delete(ONE, ["a", "runs", "unknown"]) == 2
    assert waiting(store, "b") == [("y", 2)]
    assert end(store, lease, claimed).accepted == {"runs"}


def test_delete_failed_spares_fresh_jobs(store, actions):
    fill(store, 1500)
    fail_all(store)
    store.push(TWO, [Call("fresh", b"x", 1, 9e9)])
    assert actions.delete(TWO, FAILED, only_failed=True) == 1500
    assert [job.id for job in Queries(store.client).jobs(TWO).items] == ["fresh"]


def test_bury_failed(store, actions):
    fill(store, 1500)
    fail_all(store)
    progress = []
    assert actions.bury(TWO, FAILED, b"", progress.append, only_failed=True) == 1500
    assert progress == sorted(progress)
    stats = Queries(store.client).stats(TWO)
    assert (stats.length, stats.morgue_length) == (0, 1500)
    assert Queries(store.client).morgue(TWO, Listing(limit=1)).items[0].error == b"boom"


def test_delete_dead_and_delete_all(store, actions):
    fill(store, 300)
    fail_all(store, disposition=Disposition.BURY)
    assert actions.delete_dead(TWO, ["1", "2", "nobody"]) == 2
    assert actions.delete_dead(TWO, DEAD) == 298
    assert Queries(store.client).stats(TWO).morgue_length == 0


def test_requeue_all(store, actions):
    fill(store, 300)
    fail_all(store, disposition=Disposition.BURY)
    assert actions.requeue(TWO, DEAD) == 300
    stats = Queries(store.client).stats(TWO)
    assert (stats.fresh, stats.morgue_length) == (300, 0)


def test_who_dies_during_an_action_on_all_the_dead_stays_dead(store, actions, monkeypatch):
    """L4: Lowkiq reads, then deletes by id, and loses what came in between."""
    fill(store, 10)
    fail_all(store, disposition=Disposition.BURY)
    pages = ListingReader.pages

    def dies_after_the_listing(*args):
        for page in pages(*args):
            store.push(TWO, [Call("3", b"newly dead", 2, 1.0)])
            fail_all(store, disposition=Disposition.BURY)
            yield page

    monkeypatch.setattr(ListingReader, "pages", dies_after_the_listing)
    assert actions.delete_dead(TWO, DEAD) == 9
    assert dead(store, "3", TWO) == [("x", 1), ("newly dead", 2)]


@pytest.mark.parametrize("action", ["bury", "delete"])
def test_a_job_that_is_no_longer_failed_is_spared(store, actions, monkeypatch, action):
    """L4: between the listing and the step the failed job succeeded, and the id was pushed anew."""
    fill(store, 1)
    fail_all(store)
    pages = ListingReader.pages

    def succeeds_after_the_listing(*args):
        for page in pages(*args):
            for shard in range(2):
                lease = take(store, TWO, shard, owner="succeeding")
                actions.run_now_all(TWO)
                end(store, lease, claim(store, lease, 1000), queue=TWO)
            store.push(TWO, [Call("0", b"new", 1)])
            yield page

    monkeypatch.setattr(ListingReader, "pages", succeeds_after_the_listing)
    reason = (b"",) if action == "bury" else ()
    assert getattr(actions, action)(TWO, FAILED, *reason, only_failed=True) == 0
    assert waiting(store, "0", TWO) == [("new", 1)]


def test_a_payload_that_arrives_while_a_long_job_is_deleted_is_kept(store, actions):
    store.push(ONE, [Call("1", b"%05d" % n, float(n)) for n in range(5000)])
    steps = []
    original = store.client.call

    def push_between_steps(call):
        reply = original(call)
        if call.script.name == "delete":
            steps.append(reply)
            store.push(ONE, [Call("1", b"arrived %d" % len(steps), -float(len(steps)))])
        return reply

    store.client.call = push_between_steps
    actions.delete(ONE, ["1"])
    store.client.call = original
    assert len(steps) > 3
    arrived = {f"arrived {n + 1}" for n in range(len(steps))}
    assert {data for data, _ in waiting(store, "1")} == arrived


def test_after_everything_is_deleted_no_key_of_a_job_is_left(store, client, actions):
    long = [Call("long", b"%d" % n + b"x" * 50, float(n), 1.0) for n in range(300)]
    store.push(ONE, [*long, Call("short", b"x", 1, 1.0)])
    lease = take(store)
    end(store, lease, claim(store, lease), Disposition.DIE, error=b"boom")
    fail_all(store, ONE)
    actions.bury(ONE, FAILED, b"", only_failed=True)
    actions.requeue(ONE, ["long"])
    actions.delete(ONE, ["long"])
    actions.delete_dead(ONE, DEAD)
    kept = {name for name in SHARD_KEYS if client.exists(shard_keys(SHARD)[name])}
    assert kept <= {"lease", "meta", "senders"}


# Pauses of queues and shards: nothing of them is claimed; nothing is lost, and what runs goes on.


@pytest.fixture
def pausing(store):
    return Pausing(store.client)


def next_due(store):
    return store.next_due([SHARD])[0].next_due


def follow_calls(store, queue):
    """As the pause that the queue remembers now would send them."""
    pause, since = store.client.servers.redis.hmget(queue_key(queue.name), "pause", "paused")
    announced = {"channel": channel(queue.name)}
    return [
        load("apply_queue_pause").call(
            shard_keys(shard), pause=pause, since=since, index=shard.index, **announced
        )
        for shard in queue.shard_refs()
    ]


PAUSES = {
    "shard": [lambda p, paused=paused: p.switch_shard(ONE, 0, paused=paused) for paused in (True, False)],
    "queue": [lambda p, paused=paused: p.switch_queue(ONE, paused=paused) for paused in (True, False)],
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
    pausing.switch_queue(ONE, paused=True)
    assert store.claim(ONE, lease, 1).jobs == first.jobs


def test_what_nobody_has_in_hand_goes_back_into_a_paused_shard(store, pausing):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    claim(store, lease)
    pausing.switch_shard(ONE, 0, paused=True)
    assert claim(store, lease, in_hand=OpenClaims()).jobs == ()
    assert (stats(store).busy, waiting(store, "1")) == (0, [("a", 1)])


def test_a_takeover_recovers_into_a_paused_shard(store, pausing):
    push(store, "1", ("a", 1), perform_in=1.0)
    claim(store, take(store))
    pausing.switch_queue(ONE, paused=True)
    heir = take(store, owner="heir")
    assert claim(store, heir).jobs == ()
    pausing.switch_queue(ONE, paused=False)
    assert ids_of(claim(store, heir)) == ["1"]


def test_queue_and_shard_are_apart(store, pausing):
    pausing.switch_shard(TWO, 1, paused=True)
    pausing.switch_queue(TWO, paused=True)
    found = Queries(store.client).paused(TWO)
    assert (found.queue is not None, list(found.shards), stats(store, TWO).paused) == (True, [1], 2)
    pausing.switch_queue(TWO, paused=False)
    found = Queries(store.client).paused(TWO)
    assert (found.queue, list(found.shards), stats(store, TWO).paused) == (None, [1], 1)
    pausing.switch_queue(TWO, paused=True)
    pausing.switch_shard(TWO, 1, paused=False)
    assert stats(store, TWO).paused == 2


def test_a_repeated_pause_reaches_the_shards_that_were_not_told(store, client, pausing):
    pausing.switch_queue(TWO, paused=True)
    since = Queries(store.client).paused(TWO).queue
    client.hdel(shard_keys(ShardRef("two", 1))["meta"], "queue_paused")
    assert pausing.switch_queue(TWO, paused=True)
    assert (stats(store, TWO).paused, Queries(store.client).paused(TWO).queue) == (2, since)


def test_shards_follow_the_last_change_in_whatever_order_they_hear_of_it(store, pausing):
    """Of a pause and a resume at the same time, the shards obey the one that the queue remembers."""
    pausing.switch_queue(TWO, paused=True)
    late = follow_calls(store, TWO)
    pausing.switch_queue(TWO, paused=False)
    store.client.all(late)
    assert stats(store, TWO).paused == 0


def test_a_resume_is_obeyed_also_when_the_queues_own_key_was_lost(store, client, pausing):
    pausing.switch_queue(TWO, paused=True)
    client.hdel(queue_key("two"), "pause", "paused")
    assert pausing.switch_queue(TWO, paused=False)
    assert stats(store, TWO).paused == 0


def test_new_shards_of_a_paused_queue_are_paused(store, pausing):
    push(store, "1", ("x", 1), queue=TWO)
    Actions(store.client).delete(TWO, ["1"])
    pausing.switch_queue(TWO, paused=True)
    four = QueueSpec("two", shards=4)
    reshard(store.mover(TWO), TWO, 4)
    store.push(four, [Call(str(n), b"x") for n in range(20)])
    assert stats(store, four).paused == 4
    pausing.switch_queue(four, paused=False)
    assert stats(store, four).paused == 0


def test_a_pause_with_another_count_reaches_all_shards_that_there_are(store, pausing):
    push(store, "1", ("x", 1), queue=TWO)
    pausing.switch_queue(QueueSpec("two", shards=1), paused=True)
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
        pausing.switch_shard(ONE, index, paused=True)
    with pytest.raises(InvalidCall, match="expected 0 to 0"):
        pausing.switch_shard(ONE, index, paused=False)
