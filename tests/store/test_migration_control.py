"""What an operator sees of migrations, and that they may be paused."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

from celery_lowkiq.rules.models import NewJob
from celery_lowkiq.store.resharding import mover as movers
from celery_lowkiq.store.resharding.migrations import Migrations
from celery_lowkiq.store.scripts.keys import queue_key

from .resharding import (
    NAME,
    ONE,
    begun,
    claimed,
    ended,
    in_migration,
    key,
    owned,
    phase,
    pushed,
    someone,
    until,
)


def test_a_paused_migration_holds_nothing_back(store, client):
    """Jobs run in their former shard; a call for one of them runs after it, in the new shard."""
    migrations = Migrations(store.client, NAME)
    assert migrations.pause(True) is None
    early, late = someone(2, 1), someone(2, 1)
    store.push(ONE, [NewJob(early, b"1", 1.0, perform_in=1.0), NewJob(late, b"1", 1.0, perform_in=9e9)])
    mover = begun(store, ONE, 2)
    until(client, mover, "move")
    assert (migrations.pause(True), migrations.pause(True)) == (True, False)
    assert migrations.state().paused_since is not None
    mover.turn()
    queue = in_migration(ONE, 2)
    old, new = owned(store, queue, 0), owned(store, queue, 1)
    claim = claimed(store, queue, old)
    assert [job.id for job in claim.jobs] == [early]
    pushed(store, queue, early, b"2", perform_in=1.0)
    pushed(store, queue, late, b"2", perform_in=1.0)
    mover.turn()
    assert claimed(store, queue, new).jobs == ()
    ended(store, queue, old, claim)
    for _ in range(3):
        mover.turn()
    assert client.hkeys(key("jobs", 0)) == []
    assert [job.id for job in claimed(store, queue, new).jobs] == [early]
    assert client.hget(queue_key(NAME), "phase") == b"move"
    assert (migrations.pause(False), migrations.pause(False)) == (True, False)
    until(client, mover, "seal")
    assert client.zrange(key("due", 1), 0, -1) == [late.encode()]


def test_a_call_is_found_at_the_next_look_in_any_of_many_shards(store, client):
    queue = replace(ONE, shards=60)
    store.push(queue, [NewJob("1", b"1")])
    mover = begun(store, queue, 90)
    until(client, mover, "move")
    Migrations(store.client, NAME).pause(True)
    while mover.turn():
        pass
    moving = in_migration(queue, 90)
    for home in (0, 30, 59, 89):
        job_id = next(
            name
            for name in map("call-{}".format, itertools.count())
            if moving.layout.home(name) == home and moving.layout.former_home(name) is not None
        )
        pushed(store, moving, job_id, b"1", perform_in=1.0)
        assert mover.turn()
        assert client.zrange(key("due", home), 0, -1) == [job_id.encode()]
        while mover.turn():
            pass


def test_an_id_of_which_a_part_has_left_leaves_in_a_pause(store, client, monkeypatch):
    """Its call records leave before its payloads: no claim takes it where it was."""
    monkeypatch.setattr(movers, "TRANSFER_PAYLOADS", 3)
    job_id = someone(2, 1)
    jobs = [NewJob(job_id, b"%d" % n, 1.0 + n, perform_in=1.0, record=b"call") for n in range(5)]
    store.push(ONE, jobs)
    mover, migrations = begun(store, ONE, 2), Migrations(store.client, NAME)
    until(client, mover, "move")
    mover.turn()
    assert client.zcard(key("calls", 0)) == 2
    migrations.pause(True)
    lease = owned(store, in_migration(ONE, 2), 0)
    for _ in range(6):
        mover.turn()
        assert claimed(store, in_migration(ONE, 2), lease).jobs == ()
    assert client.hkeys(key("jobs", 0)) == []
    (job,) = claimed(store, in_migration(ONE, 2), owned(store, in_migration(ONE, 2), 1)).jobs
    assert (len(job.payloads), len(job.calls.records)) == (5, 5)
    assert client.hkeys(key("outbox", 0)) == [b"sent:1"]


def test_a_migration_that_is_paused_before_it_changes_anything_waits(store, client):
    store.push(ONE, [NewJob("1", b"1")])
    mover, migrations = begun(store, ONE, 2), Migrations(store.client, NAME)
    migrations.pause(True)
    assert not mover.turn()
    assert phase(client) == "prepare"
    assert client.hget(queue_key(NAME), "shards") == b"1"


def test_the_state_of_a_migration_has_the_counts_of_redis(store, client):
    migrations = Migrations(store.client, NAME)
    assert migrations.state() is None
    queue = replace(ONE, shards=2)
    lease = owned(store, queue, 0)
    store.push(queue, [NewJob(someone(2, home=0), b"1", perform_in=1.0)])
    claimed(store, queue, lease)
    jobs = [NewJob(f"job-{n}", b"1", perform_in=9e9 - n) for n in range(50)]
    store.push(queue, jobs)
    mover = begun(store, queue, 3)
    until(client, mover, "move")
    state = migrations.state()
    assert (state.queue, state.gen, state.phase, state.former, state.shards) == (NAME, 1, "move", 2, 3)
    assert abs(state.began_at - time.time()) < 60
    assert state.paused_since is None
    assert [shard.index for shard in state.progress] == [0, 1, 2]
    assert [shard.moving for shard in state.progress] == [client.zcard(key("moving", n)) for n in range(3)]
    assert (state.left, state.moved) == (50, 0)
    assert [(shard.processing, shard.in_flight) for shard in state.progress] == [(1, 1), (0, 0), (0, 0)]
    assert {shard.route for shard in state.progress} == {"2>3"}
    client.hset(key("outbox", 1), "2", "1 abcdef")
    shard = migrations.state().progress[1]
    assert (shard.transfers, shard.transfer_bytes) == (1, 8)
    client.hdel(key("outbox", 1), "2")
    while (state := migrations.state()).left:
        mover.turn()
    assert (state.left, state.moved) == (0, 50)
