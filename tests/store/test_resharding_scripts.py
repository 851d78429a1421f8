"""What each script of a migration does and refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.errors import FormatMismatch
from celery_lowkiq.rules.models import Call, ShardRef
from celery_lowkiq.store.errors import ShardCountDiffers
from celery_lowkiq.store.keys import queue_key
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.resharding import Migrations
from tests.bound import Pausing, Queries
from tests.store.resharding import (
    NAME,
    ONE,
    begun,
    claimed,
    in_migration,
    key,
    owned,
    pushed,
    resharded,
    run,
    someone,
    until,
)


def fence(store, index=0, gen=1, route="1>2"):
    return run(store, "fence", index, gen=gen, route=route)


def opened(store, index=0, gen=1, shards="1>2", **floor):
    floors = {"score": 0, "last_call": 0, **floor}
    return run(
        store,
        "open",
        index,
        shards=shards,
        gen=gen,
        pause=0,
        since="",
        **floors,
    )


def exported(store, ids, shard=1, gen=1, number=0, index=0):
    limits = {"limit": 1000, "max_bytes": 1 << 20, "silent": ""}
    rest = [job_id.encode() for job_id in ids]
    return run(store, "export", index, rest, gen=gen, shard=shard, number=number, counts=0, **limits)


def imported(store, number, data, index=1, gen=1, source=0):
    args = {"gen": gen, "shard": source, "number": number, "data": data, "channel": "c", "index": index}
    return run(store, "import_jobs", index, merge="min", policy="", **args)


def test_a_closed_shard_refuses_calls_and_gives_none_of_its_jobs(store, client):
    store.push(ONE, [Call("1", b"x", perform_in=1.0)])
    lease = owned(store, ONE, 0)
    assert fence(store)[:2] == [b"closed", b"1"]
    assert isinstance(pushed(store, ONE, "1", b"y"), ShardCountDiffers)
    assert isinstance(pushed(store, in_migration(ONE, 2), "1", b"y"), ShardCountDiffers)
    assert claimed(store, ONE, lease).jobs == ()


@pytest.mark.parametrize("index", ["due_paused", "moving"])
def test_a_fence_writes_few_jobs_when_few_are_not_usual_ones(store, client, index):
    """The usual ones are renamed: writing them anew would take as long as there are jobs."""
    times = {f"id-{number}": number + 0.123456 for number in range(3000)}
    store.push(ONE, [Call(name, b"1", perform_in=time) for name, time in times.items()])
    client.zadd(key("paused"), {"other": 1.0})
    client.zadd(key(index), {"other": 7.5})
    client.config_resetstat()
    fence(store)
    calls = {name: found["calls"] for name, found in client.info("commandstats").items()}
    assert (calls["cmdstat_rename"], calls["cmdstat_zadd"]) == (1, 1)
    moving = client.zrange(key("moving"), 0, -1, withscores=True)
    assert {name.decode(): time for name, time in moving} == {**times, "other": 7.5}
    assert client.exists(key("due"), key("due_paused")) == 0


@pytest.mark.parametrize("paused", [False, True])
def test_a_fence_hides_many_jobs_with_priorities_in_steps(store, client, paused):
    """Between two of them, claims take what is left, and find no key that differs from others."""
    jobs = [Call(f"id-{number}", b"1", 1.0, priority=number % 10) for number in range(3500)]
    if paused:
        Pausing(store.client).switch_ids(ONE, [job.id for job in jobs], paused=True)
    store.push(ONE, jobs)
    lease, taken, replies = owned(store, ONE, 0), set(), []
    while not replies or replies[-1][-1]:
        client.config_resetstat()
        replies.append(fence(store))
        assert client.info("commandstats")["cmdstat_zadd"]["calls"] <= 3
        assert client.zcard(key("moving")) <= 1000 * len(replies) + 350
        found = {job.id for job in claimed(store, ONE, lease).jobs}
        assert len(found) <= ONE.batch_size
        taken |= found
    assert len(replies) >= 3
    hidden = {name.decode() for name in client.zrange(key("moving"), 0, -1)}
    assert hidden | taken == {job.id for job in jobs}
    assert not hidden & taken
    assert client.zcount(key("by_priority"), "(0", "+inf") == 0
    assert {name.decode() for name in client.zrange(key("inflight"), 0, -1)} == taken
    assert fence(store) == replies[-1]


def test_a_queue_with_many_priorities_is_moved(store):
    jobs = [Call(f"id-{number}", b"1", 1.0, priority=number % 10) for number in range(3500)]
    store.push(ONE, jobs)
    queue = resharded(store, ONE, 2)
    found = {
        job.id: job.priority
        for n in (0, 1)
        for job in Queries(store.client).waiting_of(queue.shard_refs()[n], 1)
    }
    assert found == {job.id: job.priority for job in jobs}


def test_a_fence_comes_once_in_each_migration(store, client):
    store.push(ONE, [Call("1", b"x")])
    assert fence(store)[0] == fence(store)[0] == b"closed"
    opened(store)
    assert fence(store)[:2] == [b"1>2", b"1"]
    assert fence(store, gen=0)[:2] == [b"1>2", b"1"]


def test_a_shard_that_has_lost_its_meta_takes_part_in_the_next_migration(store, client):
    store.push(ONE, [Call("1", b"x", perform_in=1.0)])
    queue = resharded(store, resharded(store, ONE, 2), 1)
    client.delete(key("meta"))
    store.push(queue, [Call("1", b"y", perform_in=1.0)])
    queue = resharded(store, queue, 2)
    lease = owned(store, queue, queue.layout.home("1"))
    assert [payload.data for payload in claimed(store, queue, lease).jobs[0].payloads] == [b"x", b"y"]


def test_only_a_mover_opens_a_shard_in_a_migration(store, client):
    store.push(ONE, [Call("1", b"x")])
    fence(store)

    def written(index, shards):
        return run(store, "set_shard_count", index, shards=shards, pause=0, since="")

    assert [written(index, "1>2") for index in (0, 1)] == [0, 0]
    opened(store)
    assert written(0, "1") == 0
    assert client.hget(key("meta"), "shards") == b"1>2"


def test_a_shard_opens_only_after_its_fence(store, client):
    store.push(ONE, [Call("1", b"x")])
    assert opened(store) == [b"1", b"0"]
    fence(store)
    assert opened(store) == opened(store) == [b"1>2", b"1"]


def test_scores_and_call_numbers_of_an_opened_shard_begin_above_the_floor(store, client):
    fence(store, 1)
    opened(store, 1, score=9 * 10**15, last_call=41)
    job_id = someone(2, home=1)
    assert pushed(store, in_migration(ONE, 2), job_id, b"x", record=b"call") == 1
    assert client.hget(key("meta", 1), "score") == b"9000000000000001"
    (member,) = client.zrange(key("calls", 1), 0, -1)
    assert member.endswith(b"%012xcall" % 42)


def a_pair(store, *ids):
    store.push(ONE, [Call(job_id, b"x", perform_in=1.0) for job_id in ids])
    for index in (0, 1):
        fence(store, index)
    for index in (0, 1):
        opened(store, index)


def test_a_pending_transfer_is_returned_until_it_is_forgotten(store, client):
    first, second = someone(2, 1), someone(2, 1)
    a_pair(store, first, second)
    number, data, none, busy = exported(store, [first])
    assert (number, none, busy) == (1, [], [])
    assert exported(store, [second]) == [1, data, [], []]
    assert run(store, "forget_transfer", gen=1, shard=1, number=2) == 0
    assert run(store, "forget_transfer", gen=1, shard=1, number=1) == 1
    assert exported(store, [second])[0] == 2


def test_a_transfer_is_received_once(store, client):
    job_id = someone(2, 1)
    a_pair(store, job_id)
    number, data, *_ = exported(store, [job_id])
    assert [imported(store, number, data) for _ in range(2)] == [1, 0]
    assert client.hlen(key("jobs", 1)) == 1


def test_a_number_that_the_shard_has_received_is_not_used_again(store, client):
    job_id = someone(2, 1)
    a_pair(store, job_id)
    assert exported(store, [job_id], number=7)[0] == 8


def test_an_export_tells_of_ids_without_anything_and_of_ids_in_processing(store, client):
    gone, runs = someone(2, 1), someone(2, 1)
    store.push(ONE, [Call(runs, b"x", perform_in=1.0)])
    claimed(store, ONE, owned(store, ONE, 0))
    a_pair(store)
    assert exported(store, [gone, runs]) == [0, b"", [gone.encode()], [runs.encode()]]
    assert client.zrange(key("inflight"), 0, -1) == [runs.encode()]


def test_a_transfer_takes_no_more_than_its_limits(store, client):
    ids = [someone(2, 1) for _ in range(5)]
    a_pair(store, *ids)
    limits = {"limit": 2, "max_bytes": 1 << 20, "counts": 0, "number": 0, "silent": ""}
    run(store, "export", 0, [job_id.encode() for job_id in ids], gen=1, shard=1, **limits)
    assert client.hlen(key("jobs")) == 3


@pytest.mark.parametrize("gen", [0, 2])
def test_a_script_of_another_migration_changes_nothing(store, client, gen):
    job_id = someone(2, 1)
    a_pair(store, job_id)
    assert exported(store, [job_id], gen=gen) == []
    number, data, *_ = exported(store, [job_id])
    assert imported(store, number, data, gen=gen) == -1
    # A mover that was stopped before this step of the last migration, in which numbers began with 1 as well.
    assert run(store, "forget_transfer", gen=gen, shard=1, number=number) == 0
    assert run(store, "relay", 0, [b"any"], gen=gen, channel="c", index=0) == 0
    assert run(store, "seal", 0, gen=gen, shards="1>2", sealed="2")[0] == 0
    assert client.hget(key("meta"), "shards") == b"1>2"


def test_a_sealed_shard_takes_no_transfer(store, client):
    job_id = someone(2, 1)
    a_pair(store, job_id)
    number, data, *_ = exported(store, [job_id])
    assert run(store, "seal", 1, gen=1, shards="1>2", sealed="2") == [1, 0]
    assert imported(store, number, data) == -1


def test_one_migration_begins_at_a_time(store, client):
    store.push(ONE, [Call("1", b"x")])
    migrations = Migrations(store.client, NAME)
    assert not migrations.begin(1)
    assert migrations.begin(2)
    assert not migrations.begin(3)


def test_a_fence_that_redis_has_lost_is_set_again(store, client):
    store.push(ONE, [Call(job_id := someone(2, 1), b"x", perform_in=1.0)])
    mover = begun(store, ONE, 2)
    until(client, mover, "move")
    client.hset(key("meta"), "shards", 1)
    client.hdel(key("meta"), "gen")
    client.rename(key("moving"), key("due"))
    assert pushed(store, ONE, job_id, b"y", perform_in=1.0) == 1
    until(client, mover, "idle")
    queue = replace(ONE, shards=2)
    (job,) = claimed(store, queue, owned(store, queue, 1)).jobs
    assert [payload.data for payload in job.payloads] == [b"x", b"y"]


def test_a_job_whose_place_is_lost_in_a_migration_is_sorted_again(store, client):
    job_id = someone(2, 1)
    a_pair(store, job_id)
    client.delete(key("moving"))
    Repairs(store.client).mend(in_migration(ONE, 2), ShardRef(NAME, 0))
    assert client.zrange(key("moving"), 0, -1) == [job_id.encode()]


def test_a_mover_leaves_a_queue_of_a_later_version_alone(store, client):
    """Its phases may be others."""
    store.push(ONE, [Call("1", b"x")])
    mover = begun(store, ONE, 2)
    client.hset(queue_key(NAME), mapping={"format": 9, "phase": "unknown"})
    with pytest.raises(FormatMismatch, match="format 9"):
        mover.turn()
    assert client.hget(key("meta"), "shards") == b"1"
