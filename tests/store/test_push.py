"""Pushing: once, in chunks, to the right count of shards, and not into a full server."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from celery_lowkiq.rules.errors import FormatMismatch, QueueResharded, StoreFull, StoreUnavailable
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, ShardRef
from celery_lowkiq.store import registry
from celery_lowkiq.store.keys import queue_key, shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.push import CHUNK_BYTES, CHUNK_JOBS, Sender, chunked, push_call
from celery_lowkiq.store.records import number_text
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.resharding import Migrations, reshard
from celery_lowkiq.store.script import load
from tests.bound import Actions, Queries
from tests.store.helpers import ONE, SHARD, claim, end, listening, push, take, waiting


def test_a_repeated_push_changes_nothing_even_over_a_newer_one(store):
    push(store, "0", ("registers", 1))
    sender = Sender()
    old = push_call(ONE, SHARD, sender, [Call("1", b"old", 1, 1.0)])
    assert store.client.call(old) == 1
    lease = take(store)
    end(store, lease, claim(store, lease))
    assert store.client.call(push_call(ONE, SHARD, sender, [Call("1", b"new", 2)])) == 1
    assert store.client.call(old) == 0
    assert waiting(store, "1") == [("new", 2)]


def test_a_push_whose_reply_was_lost_is_repeated_under_its_number(store, monkeypatch):
    push(store, "0", ("registers", 1))
    steps, lost = store.client.calls, iter([True])

    def loses_one(sent):
        replies = steps(sent)
        if next(lost, False):
            raise StoreUnavailable("the reply was lost")
        return replies

    monkeypatch.setattr(store.client, "calls", loses_one)
    store.push(ONE, [Call("1", b"a", 1, record=b"of the call")], pauses=[0.0])
    assert waiting(store, "1") == [("a", 1)]
    assert store.client.servers.redis.zcard(shard_keys(SHARD)["calls"]) == 1


def test_senders_are_forgotten_after_an_hour_without_a_push(store, client):
    push(store, "1", ("a", 1))
    senders = shard_keys(SHARD)["senders"]
    long_ago = {f"gone-{number}": "5 1000" for number in range(50)}
    client.hset(senders, mapping=long_ago)
    for _ in range(200):
        RedisStore(client).push(ONE, [Call("1", b"a", 1)])
    names = client.hkeys(senders)
    assert not [name for name in names if name.startswith(b"gone")]
    assert len(names) > 200


def test_a_bulk_push_goes_in_chunks_to_all_shards(store):
    queue = QueueSpec("many", shards=3)
    store.push(queue, [Call(str(number), b"x") for number in range(5000)])
    assert Queries(store.client).stats(queue).length == 5000
    assert all(one.length > 1500 for one in Queries(store.client).shard_stats(queue))


def test_chunks_are_bounded_in_jobs_and_bytes():
    small = [Call("1", b"x")] * (2 * CHUNK_JOBS + 1)
    assert [len(chunk) for chunk in chunked(small)] == [CHUNK_JOBS, CHUNK_JOBS, 1]
    large = [Call("1", b"x" * (CHUNK_BYTES // 2))] * 5
    assert [len(chunk) for chunk in chunked(large)] == [2, 2, 1]
    full = [Call("1", b"x" * (CHUNK_BYTES - 1)), Call("2", b"x"), Call("3", b"x")]
    assert [len(chunk) for chunk in chunked(full)] == [2, 1]


def test_a_push_follows_the_stored_number_of_shards(store, client):
    push(store, "1", ("a", 1))
    other = QueueSpec("orders", shards=4)
    push(store, "1", ("b", 2), queue=other)
    assert waiting(store, "1") == [("a", 1), ("b", 2)]
    with pytest.raises(QueueResharded, match="has 1 shards"):
        take(store, other)
    # The next one knows the number.
    before = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    push(store, "1", ("c", 3), queue=other)
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1


@pytest.mark.parametrize("before, after", [(1, 4), (4, 1), (3, 2)])
def test_a_queue_is_resharded_and_old_callers_follow(store, client, before, after):
    old, new = QueueSpec("q", shards=before, batch_size=10), QueueSpec("q", shards=after, batch_size=10)
    push(store, "1", ("a", 1), queue=old, perform_in=1.0)
    reshard(store.mover(old), old, after)
    assert waiting(store, "1", new) == [("a", 1)]
    Actions(store.client).delete(new, ["1"])
    jobs = [Call(str(n), b"x") for n in range(2 * CHUNK_JOBS * max(before, after))]
    stored = []
    store.push(old, jobs, stored=stored.extend)
    assert sorted(job.id for job in stored) == sorted(job.id for job in jobs)
    assert Queries(store.client).stats(new).length == len(jobs)
    assert registry.as_stored(store.client, [old]) == [new]


def test_what_was_stored_before_the_number_of_shards_changed_is_not_stored_twice(store, client):
    """Its reply was lost, and the queue was resharded before the push was repeated."""
    old, new, sender = QueueSpec("q", shards=1), QueueSpec("q", shards=2), Sender()
    push(store, "1", ("registers", 1), queue=old)
    call = push_call(old, old.shard_of("1"), sender, [Call("1", b"x")])
    assert store.client.call(call) == 1
    Actions(store.client).delete(old, ["1"])
    reshard(store.mover(old), old, 2)
    assert store.client.call(call) == 0
    assert Queries(store.client).stats(new).length == 0


def test_dead_jobs_move_too(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    end(store, lease, claim(store, lease), Disposition.BURY)
    reshard(store.mover(ONE), ONE, 3)
    three = QueueSpec("orders", shards=3)
    assert Queries(store.client).stats(three).morgue_length == 1
    assert Queries(store.client).job(three, "1", 10).dead.payloads[0].data == b"a"


def test_another_format_is_refused(store, client):
    client.hset(queue_key("orders"), mapping={"format": 99, "shards": 1})
    with pytest.raises(FormatMismatch, match="format 99"):
        push(store, "1", ("a", 1))


def test_a_full_redis_refuses_pushes_and_still_drains(store, client):
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    flags = int(client.info("server")["redis_version"].split(".")[0]) >= 7
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull, match="maxmemory"):
            push(store, "2", ("c", 1))
        if flags:  # Redis 6.2 knows no script flags: there the operator has to make room
            assert end(store, lease, claimed, Disposition.DIE, error=b"x").accepted == {"1"}
            assert end(store, lease, claim(store, lease)).accepted == {"1"}
            assert store.release(lease)
    finally:
        client.config_set("maxmemory", 0)
    assert waiting(store, "2") is None


def test_many_threads_push_at_once_and_nothing_is_lost(store):
    queue = QueueSpec("busy", shards=4)

    def pusher(number: int) -> None:
        for step in range(50):
            store.push(queue, [Call(f"{number}-{step}", b"x")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pusher, range(8)))
    assert Queries(store.client).stats(queue).length == 400


def test_scripts_come_back_after_a_flush(store, client):
    push(store, "1", ("a", 1))
    client.script_flush()
    store.push(QueueSpec("two", shards=3), [Call(str(number), b"x") for number in range(30)])
    client.script_flush()
    lease = take(store)
    assert claim(store, lease).jobs[0].id == "1"


def test_announcements_say_when_a_shard_has_work_earlier(store):
    push(store, "0", ("registers", 1), perform_in=9e9)
    with listening(store) as heard:
        push(store, "1", ("a", 1), perform_in=5e9)
        push(store, "2", ("a", 1), perform_in=6e9)
        push(store, "3", ("a", 1), perform_in=4e9)
        first, second = heard(), heard()
        if first == (SHARD, 9e9):
            # On a cluster, it may reach the master of the subscription later.
            first, second = second, heard()
        assert [first, second] == [(SHARD, 5e9), (SHARD, 4e9)]


def test_foreign_messages_on_a_channel_are_no_announcements(store, client):
    with listening(store) as heard:
        for data in (b"", b"x y", b"1", b"\xff\xfe 1", b"0 nan-ish"):
            client.publish("lowkiq:1:pushed:{orders}", data)
        client.publish("lowkiq:1:pushed:{orders}", b"0 3.5")
        assert heard() == (SHARD, 3.5)


def test_pushes_go_on_while_the_number_of_shards_changes(client):
    """No push is refused, and no id lies in two shards."""
    for turn in range(6):
        old, new = QueueSpec(f"q{turn}", shards=5), QueueSpec(f"q{turn}", shards=8)
        store = RedisStore(client)
        push(store, "1", ("a", 1), queue=old)

        def pusher(number, queues=(old, new)):
            jobs = [Call(f"id-{number}-{step}", b"x") for step in range(20)]
            RedisStore(client).push(queues[number % 2], jobs)

        acts = [partial(reshard, store.mover(old), old, 8) for _ in range(2)]
        acts += [partial(pusher, n) for n in range(6)]
        with ThreadPoolExecutor(len(acts)) as pool:
            for done in [pool.submit(act) for act in acts]:
                done.result()
        assert registry.as_stored(store.client, [old]) == [new]
        assert Queries(store.client).stats(new).length == 121
        page = Queries(store.client).jobs(new, Listing("perform_in", limit=1000)).items
        assert len({job.id for job in page}) == 121
        assert all(Queries(store.client).job(new, job.id, 10).waiting for job in page)


def test_a_migration_between_two_steps_of_opening_a_shard_is_no_damage(store, monkeypatch):
    push(store, "1", ("a", 1), queue=(old := QueueSpec("q", shards=2)))
    each = store.client.each

    def each_after_migration(calls, *kept):
        monkeypatch.undo()
        reshard(store.mover(old), old, 3)
        return each(calls, *kept)

    monkeypatch.setattr(store.client, "each", each_after_migration)
    with pytest.raises(QueueResharded):
        registry.open_shards(store.client, old, old.shard_refs(), Repairs(store.client), store.mover)


def test_a_caller_opens_shards_whose_mover_has_died(store, client):
    push(store, "1", ("a", 1), queue=(old := QueueSpec("q", shards=2)))
    mover = store.mover(old)
    Migrations(store.client, "q").begin(4)
    mover.turn()
    migration = Migrations(store.client, "q").read()
    for index in migration.sources:
        shard = shard_keys(ShardRef("q", index))
        store.client.call(load("fence").call(shard, gen=migration.gen, route="2>4"))
    push(RedisStore(client), "1", ("b", 2), queue=old)
    push(RedisStore(client), "2", ("b", 2), queue=old)
    assert reshard(mover, old, 4) > 0
    assert waiting(store, "1", QueueSpec("q", shards=4)) == [("a", 1), ("b", 2)]


def test_a_push_with_a_score_of_nan_writes_nothing_before_it_fails(store, client):
    """Lowkiq's fault L5. Python refuses NaN at the call; here no half of a job is left."""
    push(store, "0", ("registers", 1))
    with pytest.raises(Exception, match="float"):
        push(store, "1", ("a", 1), perform_in=math.nan)
    assert number_text(math.nan) == "nan"
    assert waiting(store, "1") is None
    assert not client.hexists(shard_keys(SHARD)["jobs"], "1")
