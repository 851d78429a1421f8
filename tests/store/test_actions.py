"""What operators do, in bounded steps; nothing that arrives in between is lost."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Disposition, NewJob, QueueSpec
from celery_lowkiq.store.actions import Actions
from celery_lowkiq.store.counts import Queries
from celery_lowkiq.store.keys import SHARD_KEYS, shard_keys
from celery_lowkiq.store.listings import Listing, ListingReader

from .helpers import ONE, SHARD, claim, dead, end, listening, push, take, waiting

TWO = QueueSpec("two", shards=2, batch_size=1000)


@pytest.fixture
def actions(store):
    return Actions(store)


def fail_all(store, queue=TWO, disposition=Disposition.RETRY):
    for shard in range(queue.shards):
        lease = take(store, queue, shard, owner=f"failing-{disposition}")
        while (claimed := claim(store, lease, 1000)).jobs:
            end(store, lease, claimed, disposition, queue=queue, delay=1e6, error=b"boom")


def fill(store, count, queue=TWO):
    store.push(queue, [NewJob(str(n), b"x", 1, 1.0) for n in range(count)])


def test_run_now_all(store, actions):
    store.push(TWO, [NewJob(str(n), b"x", 1, 9e9) for n in range(2500)])
    seen = []
    assert actions.run_now_all(TWO, seen.append) == 2500
    assert seen[-1] == 2500
    assert len(seen) > 1
    assert Queries(store).jobs(TWO, Listing("perform_in", minimum=8e9)).items == ()


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
    store.push(TWO, [NewJob("fresh", b"x", 1, 9e9)])
    assert actions.delete_failed(TWO) == 1500
    assert [job.id for job in Queries(store).jobs(TWO).items] == ["fresh"]


def test_bury_failed(store, actions):
    fill(store, 1500)
    fail_all(store)
    progress = []
    assert actions.bury_failed(TWO, progress.append) == 1500
    assert progress == sorted(progress)
    stats = Queries(store).stats(TWO)
    assert (stats.length, stats.morgue_length) == (0, 1500)
    assert Queries(store).morgue(TWO, Listing(limit=1)).items[0].error == b"boom"


def test_delete_dead_and_delete_all(store, actions):
    fill(store, 300)
    fail_all(store, disposition=Disposition.BURY)
    assert actions.delete_dead(TWO, ["1", "2", "nobody"]) == 2
    assert actions.delete_dead_all(TWO) == 298
    assert Queries(store).stats(TWO).morgue_length == 0


def test_requeue_all(store, actions):
    fill(store, 300)
    fail_all(store, disposition=Disposition.BURY)
    assert actions.requeue_all(TWO) == 300
    stats = Queries(store).stats(TWO)
    assert (stats.fresh, stats.morgue_length) == (300, 0)


def test_who_dies_during_an_action_on_all_the_dead_stays_dead(store, actions, monkeypatch):
    """L4: Lowkiq reads, then deletes by id, and loses what came in between."""
    fill(store, 10)
    fail_all(store, disposition=Disposition.BURY)
    pages = ListingReader.pages

    def dies_after_the_listing(*args):
        for page in pages(*args):
            store.push(TWO, [NewJob("3", b"newly dead", 2, 1.0)])
            fail_all(store, disposition=Disposition.BURY)
            yield page

    monkeypatch.setattr(ListingReader, "pages", dies_after_the_listing)
    assert actions.delete_dead_all(TWO) == 9
    assert dead(store, "3", TWO) == [("x", 1), ("newly dead", 2)]


@pytest.mark.parametrize("action", ["bury_failed", "delete_failed"])
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
            store.push(TWO, [NewJob("0", b"new", 1)])
            yield page

    monkeypatch.setattr(ListingReader, "pages", succeeds_after_the_listing)
    assert getattr(actions, action)(TWO) == 0
    assert waiting(store, "0", TWO) == [("new", 1)]


def test_a_payload_that_arrives_while_a_long_job_is_deleted_is_kept(store, actions):
    store.push(ONE, [NewJob("1", b"%05d" % n, float(n)) for n in range(5000)])
    steps = []
    original = store.client.call

    def push_between_steps(call):
        reply = original(call)
        if call.script.name == "delete":
            steps.append(reply)
            store.push(ONE, [NewJob("1", b"arrived %d" % len(steps), -float(len(steps)))])
        return reply

    store.client.call = push_between_steps
    actions.delete(ONE, ["1"])
    store.client.call = original
    assert len(steps) > 3
    arrived = {f"arrived {n + 1}" for n in range(len(steps))}
    assert {data for data, _ in waiting(store, "1")} == arrived


def test_after_everything_is_deleted_no_key_of_a_job_is_left(store, client, actions):
    long = [NewJob("long", b"%d" % n + b"x" * 50, float(n), 1.0) for n in range(300)]
    store.push(ONE, [*long, NewJob("short", b"x", 1, 1.0)])
    lease = take(store)
    end(store, lease, claim(store, lease), Disposition.DIE, error=b"boom")
    fail_all(store, ONE)
    actions.bury_failed(ONE)
    actions.requeue(ONE, ["long"])
    actions.delete(ONE, ["long"])
    actions.delete_dead_all(ONE)
    kept = {name for name in SHARD_KEYS if client.exists(shard_keys(SHARD)[name])}
    assert kept <= {"lease", "meta", "senders"}
