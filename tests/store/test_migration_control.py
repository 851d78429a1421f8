"""What an operator sees of migrations, and that they may be paused."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from celery_lowkiq.rules.errors import MigrationAborted, StoreUnavailable
from celery_lowkiq.rules.models import Call
from celery_lowkiq.rules.policies import AfterFailure, Policies
from celery_lowkiq.store import registry
from celery_lowkiq.store import resharding as moving_shards
from celery_lowkiq.store.keys import queue_key
from celery_lowkiq.store.resharding import SLICES, Migrations, Mover, reshard
from tests.bound import Pausing, Queries
from tests.store.resharding import (
    NAME,
    ONE,
    begun,
    claimed,
    ended,
    fails,
    in_migration,
    key,
    owned,
    phase,
    pushed,
    resharded,
    run,
    someone,
    until,
)


def test_a_paused_migration_holds_nothing_back(store, client):
    """Jobs run in their former shard; a call for one of them runs after it, in the new shard."""
    migrations = Migrations(store.client, NAME)
    assert migrations.pause(True) is None
    early, late = someone(2, 1), someone(2, 1)
    store.push(ONE, [Call(early, b"1", 1.0, perform_in=1.0), Call(late, b"1", 1.0, perform_in=9e9)])
    mover = begun(store, ONE, 2)
    until(client, mover, "move")
    assert (migrations.pause(True), migrations.pause(True)) == (True, False)
    assert migrations.state().paused_since is not None
    mover.turn()
    assert [shard.staying for shard in migrations.state().progress] == [2, 0]
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


def test_what_is_left_in_a_pause_does_not_grow(store, client, monkeypatch):
    """It was estimated by the jobs that are due first, of which more leave than of the others."""
    monkeypatch.setattr("celery_lowkiq.store.resharding.SAMPLED_JOBS", 64)
    leaving = [someone(2, 1) for _ in range(300)]
    staying = [someone(2, home=0) for _ in range(300)]
    jobs = [Call(one, b"1", 1.0, perform_in=1.0) for one in leaving]
    store.push(ONE, [*jobs, *(Call(one, b"1", 1.0, perform_in=9e9) for one in staying)])
    migrations, mover = Migrations(store.client, NAME), begun(store, ONE, 2)
    until(client, mover, "move")
    migrations.pause(True)
    left, goes_on = [migrations.state().left], True
    while goes_on:
        goes_on = mover.turn()
        state = migrations.state()
        left.append(state.left)
        assert (state.left + state.moved, state.moved < 600) == (600, True)
    slack = 600 / SLICES
    assert all(later <= earlier + slack for earlier, later in itertools.pairwise(left))
    assert abs(left[-1] - 300) <= slack


def test_a_call_is_found_at_the_next_look_in_any_of_many_shards(store, client):
    queue = replace(ONE, shards=60)
    store.push(queue, [Call("1", b"1")])
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
    monkeypatch.setattr(moving_shards, "TRANSFER_PAYLOADS", 3)
    job_id = someone(2, 1)
    jobs = [Call(job_id, b"%d" % n, 1.0 + n, perform_in=1.0, record=b"call") for n in range(5)]
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


@pytest.mark.one_server
def test_a_migration_that_redis_refuses_to_begin_is_an_error(store, client):
    """It counted as one that another process has begun: `reshard` asked again and again, without a pause."""
    store.push(ONE, [Call("1", b"1")])
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            Migrations(store.client, NAME).begin(2)
    finally:
        client.config_set("min-replicas-to-write", 0)
    mover = begun(store, ONE, 2)
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            mover.turn()
    finally:
        client.config_set("min-replicas-to-write", 0)


def test_a_migration_that_is_paused_before_it_changes_anything_waits(store, client):
    store.push(ONE, [Call("1", b"1")])
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
    store.push(queue, [Call(someone(2, home=0), b"1", perform_in=1.0)])
    claimed(store, queue, lease)
    jobs = [Call(f"job-{n}", b"1", perform_in=9e9 - n) for n in range(50)]
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


# -- abort


def test_a_migration_is_aborted(store, client):
    """All comes back; the queue can be resharded again."""
    queue = replace(ONE, shards=3)
    store.push(queue, [Call(f"job-{n}", b"1", 5.0 + n, perform_in=9e9 - n) for n in range(50)])
    before = {index: client.zrange(key("due", index), 0, -1, withscores=True) for index in range(3)}
    mover, migrations = begun(store, queue, 5), Migrations(store.client, NAME)
    until(client, mover, "move")
    migrations.pause(True)
    mover.turn()
    assert (migrations.abort(), migrations.abort()) == (3, 3)
    state = migrations.state()
    assert (state.gen, state.former, state.shards, state.paused_since) == (2, 5, 3, None)
    assert state.aborted_at >= state.began_at
    until(client, mover, "idle")
    assert migrations.abort() is None
    assert {n: client.zrange(key("due", n), 0, -1, withscores=True) for n in range(3)} == before
    assert client.exists(*(key(name, n) for name in ("jobs", "moving", "arrived") for n in (3, 4))) == 0
    assert [client.hget(key("meta", n), "shards") for n in (0, 4)] == [b"3", b"retired"]
    assert reshard(mover, queue, 5) == 50
    assert migrations.state() is None


@pytest.mark.parametrize("fenced", [0, 1, 3])
def test_a_migration_is_aborted_before_any_shard_is_open(store, client, fenced):
    queue = replace(ONE, shards=3)
    store.push(queue, [Call(f"job-{n}", b"1", perform_in=1.0) for n in range(20)])
    mover, migrations = begun(store, queue, 5), Migrations(store.client, NAME)
    until(client, mover, "flip")
    for index in range(fenced):
        run(store, "fence", index, gen=1, route="3>5")
    assert migrations.abort() == 3
    store.push(queue, [Call(f"job-{n}", b"2", perform_in=1.0) for n in range(20)])
    until(client, mover, "idle")
    claims = [claimed(store, queue, owned(store, queue, index)) for index in range(3)]
    assert {len(job.payloads) for claim in claims for job in claim.jobs} == {2}
    assert sum(len(claim.jobs) for claim in claims) == 20


def test_a_migration_that_has_changed_nothing_ends_when_it_is_aborted(store, client):
    store.push(ONE, [Call("1", b"1", perform_in=1.0)])
    mover, migrations = begun(store, ONE, 2), Migrations(store.client, NAME)
    assert migrations.abort() == 1
    assert client.hmget(queue_key(NAME), "shards", "phase", "format") == [b"1", b"idle", b"4"]
    assert not mover.turn()
    assert reshard(mover, ONE, 2) == 1


def test_what_has_all_moved_is_not_aborted(store, client):
    store.push(ONE, [Call("1", b"1")])
    mover = begun(store, ONE, 2)
    until(client, mover, "seal")
    assert Migrations(store.client, NAME).abort() is None


def test_who_waits_for_an_aborted_migration_is_told(store, client, monkeypatch):
    store.push(ONE, [Call("1", b"1")])
    mover, migrations, turn = Mover(store.client, ONE), Migrations(store.client, NAME), Mover.turn

    def aborted(self):
        if phase(client) == "move":
            migrations.abort()
            until(client, SimpleNamespace(turn=lambda: turn(self)), "idle")
        return turn(self)

    monkeypatch.setattr(Mover, "turn", aborted)
    with pytest.raises(MigrationAborted, match="the move of queue 'orders' to 2 shards was aborted"):
        reshard(mover, ONE, 2)
    assert client.hget(queue_key(NAME), "shards") == b"1"


def test_an_aborted_migration_whose_queue_loses_its_own_key_goes_back(store, client):
    store.push(ONE, [Call(f"job-{n}", b"1", perform_in=1.0) for n in range(20)])
    mover, migrations = begun(store, ONE, 2), Migrations(store.client, NAME)
    until(client, mover, "move")
    mover.turn()
    migrations.abort()
    until(client, mover, "move")
    client.delete(queue_key(NAME))
    registry.registered(store.client, ONE)
    until(client, mover, "idle")
    assert len(claimed(store, ONE, owned(store, ONE, 0)).jobs) == 20


def test_a_shard_that_would_be_removed_keeps_its_pause(store, client):
    """One that is removed does not."""
    queue = replace(ONE, shards=3)
    store.push(queue, [Call(f"job-{n}", b"1") for n in range(20)])
    Pausing(store.client).switch_shard(queue, 2, paused=True)
    mover = begun(store, queue, 2)
    until(client, mover, "move")
    Migrations(store.client, NAME).abort()
    until(client, mover, "idle")
    assert client.hexists(key("meta", 2), "paused")
    resharded(store, resharded(store, queue, 2), 3)
    assert not client.hexists(key("meta", 2), "paused")


@pytest.mark.parametrize("priority, wanted", [(2, 1), (0, 0)])
def test_the_more_urgent_of_both_jobs_decides(store, client, priority, wanted):
    """The older one has priority 1."""
    queue, job_id = replace(ONE, policies=Policies(priority=3)), someone(2, home=1)
    store.push(queue, [Call(job_id, b"1", perform_in=9e8, priority=1)])
    mover = begun(store, queue, 2)
    until(client, mover, "move")
    pushed(store, in_migration(queue, 2), job_id, b"2", perform_in=7e8, priority=priority)
    Migrations(store.client, NAME).abort()
    until(client, mover, "idle")
    job = Queries(store.client).job(queue, job_id).waiting
    assert (job.perform_in, job.priority, len(job.payloads)) == (9e8, wanted, 2)


@pytest.mark.parametrize(
    "policies, due_at", [({}, 9e9), ({"when_pushed_after_failure": AfterFailure.NOW}, 5.0)]
)
def test_a_call_that_comes_back_acts_on_a_job_that_waits_for_its_retry(store, client, policies, due_at):
    queue, job_id = replace(ONE, policies=Policies(**policies)), someone(2, home=1)
    store.push(queue, [Call(job_id, b"1", perform_in=1.0)])
    lease = owned(store, queue, 0)
    fails(store, queue, lease)
    client.zadd(key("due"), {job_id: 9e9})
    mover = begun(store, queue, 2)
    until(client, mover, "move")
    pushed(store, in_migration(queue, 2), job_id, b"2", perform_in=5.0)
    Migrations(store.client, NAME).abort()
    until(client, mover, "idle")
    job = Queries(store.client).job(queue, job_id).waiting
    assert (job.perform_in, job.retry_count) == (due_at, 3)
