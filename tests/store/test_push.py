"""Pushing: once, in chunks, to the right count of shards, and not into a full server."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_lowkiq.rules.errors import FormatMismatch, ShardCountMismatch, StoreFull, StoreUnavailable
from celery_lowkiq.rules.models import Disposition, NewJob, QueueSpec, ShardRef
from celery_lowkiq.store.admin.actions import Actions
from celery_lowkiq.store.inspect.pages import Listing
from celery_lowkiq.store.inspect.queries import Queries
from celery_lowkiq.store.jobs.push import CHUNK_BYTES, CHUNK_JOBS, Sender, chunked, push_call
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.keys import queue_key, shard_keys
from celery_lowkiq.store.scripts.records import number_text

from .helpers import ONE, SHARD, claim, end, listening, push, take, waiting


def test_a_repeated_push_changes_nothing_even_over_a_newer_one(store):
    push(store, "0", ("registers", 1))
    sender = Sender()
    old = push_call(ONE, SHARD, sender, [NewJob("1", b"old", 1, 1.0)])
    assert store.client.call(old) == 1
    lease = take(store)
    end(store, lease, claim(store, lease))
    assert store.client.call(push_call(ONE, SHARD, sender, [NewJob("1", b"new", 2)])) == 1
    assert store.client.call(old) == 0
    assert waiting(store, "1") == [("new", 2)]


def test_a_push_whose_reply_was_lost_is_repeated_under_its_number(store, monkeypatch):
    push(store, "0", ("registers", 1))
    steps, lost = store.client.call_steps, iter([True])

    def loses_one(sent):
        replies = yield from steps(sent)
        if next(lost, False):
            raise StoreUnavailable("the reply was lost")
        return replies

    monkeypatch.setattr(store.client, "call_steps", loses_one)
    store.push(ONE, [NewJob("1", b"a", 1, record=b"of the call")], pauses=[0.0])
    assert waiting(store, "1") == [("a", 1)]
    assert store.client.redis.zcard(shard_keys(SHARD)["calls"]) == 1


def test_senders_are_forgotten_after_an_hour_without_a_push(store, client):
    push(store, "1", ("a", 1))
    senders = shard_keys(SHARD)["senders"]
    long_ago = {f"gone-{number}": "5 1000" for number in range(50)}
    client.hset(senders, mapping=long_ago)
    for _ in range(200):
        RedisStore(client).push(ONE, [NewJob("1", b"a", 1)])
    names = client.hkeys(senders)
    assert not [name for name in names if name.startswith(b"gone")]
    assert len(names) > 200


def test_a_bulk_push_goes_in_chunks_to_all_shards(store):
    queue = QueueSpec("many", shards=3)
    store.push(queue, [NewJob(str(number), b"x") for number in range(5000)])
    assert Queries(store).stats(queue).length == 5000
    assert all(one.length > 1500 for one in Queries(store).shard_stats(queue))


def test_chunks_are_bounded_in_jobs_and_bytes():
    small = [NewJob("1", b"x")] * (2 * CHUNK_JOBS + 1)
    assert [len(chunk) for chunk in chunked(small)] == [CHUNK_JOBS, CHUNK_JOBS, 1]
    large = [NewJob("1", b"x" * (CHUNK_BYTES // 2))] * 5
    assert [len(chunk) for chunk in chunked(large)] == [2, 2, 1]
    full = [NewJob("1", b"x" * (CHUNK_BYTES - 1)), NewJob("2", b"x"), NewJob("3", b"x")]
    assert [len(chunk) for chunk in chunked(full)] == [2, 1]


def test_another_shard_count_is_refused_and_nothing_is_stored(store):
    push(store, "1", ("a", 1))
    other = QueueSpec("orders", shards=4)
    with pytest.raises(ShardCountMismatch, match=r"with 1 shards.*declares 4.*Deploy shards=1 again"):
        push(store, "1", ("b", 2), queue=other)
    with pytest.raises(ShardCountMismatch):
        take(store, other)
    assert waiting(store, "1") == [("a", 1)]
    push(store, "1", ("c", 3))


@pytest.mark.parametrize("before, after", [(1, 4), (4, 1), (3, 2)])
def test_an_empty_queue_adopts_the_new_count(store, before, after):
    old, new = QueueSpec("q", shards=before, batch_size=10), QueueSpec("q", shards=after, batch_size=10)
    push(store, "1", ("a", 1), queue=old, perform_in=1.0)
    with pytest.raises(ShardCountMismatch):
        push(store, "1", ("b", 2), queue=new)
    for shard in range(before):
        lease = take(store, old, shard)
        end(store, lease, claim(store, lease), queue=old)
    push(store, "1", ("b", 2), queue=new)
    assert Queries(store).stats(new).length == 1
    with pytest.raises(ShardCountMismatch, match=rf"with {after} shards.*declares {before}"):
        push(store, "1", ("c", 3), queue=old)


def test_dead_jobs_keep_a_queue_from_changing_its_count(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    end(store, lease, claim(store, lease), Disposition.BURY)
    with pytest.raises(ShardCountMismatch):
        push(store, "1", ("b", 2), queue=QueueSpec("orders", shards=2))


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
            store.push(queue, [NewJob(f"{number}-{step}", b"x")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pusher, range(8)))
    assert Queries(store).stats(queue).length == 400


def test_scripts_come_back_after_a_flush(store, client):
    push(store, "1", ("a", 1))
    client.script_flush()
    store.push(QueueSpec("two", shards=3), [NewJob(str(number), b"x") for number in range(30)])
    client.script_flush()
    lease = take(store)
    assert claim(store, lease).jobs[0].id == "1"


def test_announcements_say_when_a_shard_has_work_earlier(store):
    push(store, "0", ("registers", 1), perform_in=9e9)
    with listening(store) as heard:
        push(store, "1", ("a", 1), perform_in=5.0)
        push(store, "2", ("a", 1), perform_in=6.0)
        push(store, "3", ("a", 1), perform_in=4.0)
        assert [heard(), heard()] == [(SHARD, 5.0), (SHARD, 4.0)]


def test_foreign_messages_on_a_channel_are_no_announcements(store, client):
    with listening(store) as heard:
        for data in (b"", b"x y", b"1", b"\xff\xfe 1", b"0 nan-ish"):
            client.publish("lowkiq:1:pushed:{orders}", data)
        client.publish("lowkiq:1:pushed:{orders}", b"0 3.5")
        assert heard() == (SHARD, 3.5)


def test_many_processes_may_adopt_a_new_count_at_once(client):
    """No push is refused, and no id lies in two shards."""
    for turn in range(15):
        old, new = QueueSpec(f"q{turn}", shards=5), QueueSpec(f"q{turn}", shards=8)
        store = RedisStore(client)
        push(store, "1", ("a", 1), queue=old)
        Actions(store).delete(old, ["1"])

        def pusher(number, queue=new):
            RedisStore(client).push(queue, [NewJob(f"id-{number}-{step}", b"x") for step in range(20)])

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(pusher, range(6)))
        assert Queries(store).stats(new).length == 120
        page = Queries(store).jobs(new, Listing("perform_in", limit=1000)).items
        assert len({job.id for job in page}) == 120


def test_a_closed_shard_is_not_opened_by_a_call_of_the_old_count(store, client):
    """While the count changes, a caller with the old count waits; then it is refused."""
    old, new = QueueSpec("orders", shards=1), QueueSpec("orders", shards=2)
    push(store, "1", ("a", 1), queue=old)
    Actions(store).delete(old, ["1"])
    # Half-way: one shard has the new count and a job already, the other one is closed.
    client.hset(shard_keys(SHARD)["meta"], "shards", "closed")
    second = ShardRef("orders", 1)
    client.hset(shard_keys(second)["meta"], "shards", "2")
    assert store.client.call(push_call(new, second, Sender(), [NewJob("new", b"x")])) == 1
    outcome = []

    def call():
        try:
            push(RedisStore(client), "1", ("old", 1), queue=old)
            outcome.append("stored")
        except ShardCountMismatch:
            outcome.append("refused")

    caller = threading.Thread(target=call)
    caller.start()
    client.hset(queue_key("orders"), "shards", "2")
    caller.join(20)
    assert outcome == ["refused"]
    assert waiting(store, "1", new) is None


def test_a_shard_that_stays_closed_is_opened_again(store, client):
    """The process that closed it died before it could open it again."""
    push(store, "1", ("a", 1))
    Actions(store).delete(ONE, ["1"])
    client.hset(shard_keys(SHARD)["meta"], "shards", "closed")
    push(store, "1", ("b", 1))
    assert waiting(store, "1") == [("b", 1)]


def test_a_push_with_a_score_of_nan_writes_nothing_before_it_fails(store, client):
    """Lowkiq's fault L5. Python refuses NaN at the call; here no half of a job is left."""
    push(store, "0", ("registers", 1))
    with pytest.raises(Exception, match="float"):
        push(store, "1", ("a", 1), perform_in=math.nan)
    assert number_text(math.nan) == "nan"
    assert waiting(store, "1") is None
    assert not client.hexists(shard_keys(SHARD)["jobs"], "1")
