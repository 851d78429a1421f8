"""Faults that a review proved, each of them once."""

from __future__ import annotations

import threading

import pytest
from redis import exceptions

from celery_lowkiq.rules.claims import InHand
from celery_lowkiq.rules.errors import ShardCountMismatch, StoreFull, StoreUnavailable
from celery_lowkiq.rules.models import Fate, NewJob, QueueSpec, ShardRef
from celery_lowkiq.store.admin.actions import Actions
from celery_lowkiq.store.inspect.queries import Queries
from celery_lowkiq.store.jobs.push import Sender, push_call
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.client import store_error
from celery_lowkiq.store.scripts.keys import queue_key, shard_keys
from tests.waiting import eventually

from .helpers import ONE, SHARD, claim, end, push, take, waiting


@pytest.mark.parametrize("delay", [1e19, 1e303, float("inf"), float("nan")])
def test_a_pause_beyond_all_numbers_loses_nothing(store, delay):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    settled = end(store, lease, claim(store, lease), Fate.RETRY, delay=delay)
    job = Queries(store).job(ONE, "1").waiting
    assert settled.now + 9e8 < job.perform_in < settled.now + 2e9


def test_what_is_left_of_a_claim_that_nobody_has_in_hand_is_due(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    claimed = claim(store, take(store))
    assert store.next_due([SHARD])[0].next_due is None
    (due,) = store.next_due([SHARD], [InHand(claimed.number)])
    assert due.next_due == due.now
    assert store.next_due([SHARD], [InHand(claimed.number, (claimed.number,))])[0].next_due is None


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ReadOnlyError("You can't write against a read only replica."),
        exceptions.MasterDownError("Link with MASTER is down"),
        exceptions.ClusterDownError("The cluster is down"),
        exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
    ],
)
def test_a_server_that_cannot_write_for_now_is_an_outage(error):
    assert isinstance(store_error(error), StoreUnavailable)


def test_a_read_only_replica_is_an_outage(store, client):
    push(store, "1", ("a", 1))
    client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(StoreUnavailable):
            push(store, "2", ("a", 1))
    finally:
        client.replicaof("NO", "ONE")


def test_one_refused_load_does_not_switch_flags_off(store, client, monkeypatch):
    """A busy server refused the script; it still knows flags, and has to drain when it is full."""
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    fresh = RedisStore(client)
    client.script_flush()
    send, refused = fresh.client._send, []

    def busy_once(commands):
        if commands[0][0] == "SCRIPT LOAD" and not refused:
            refused.append(1)
            return [exceptions.ResponseError("BUSY Redis is busy running a script.")]
        return send(commands)

    monkeypatch.setattr(fresh.client, "_send", busy_once)
    with pytest.raises(StoreUnavailable):
        claim(fresh, lease)
    if int(client.info("server")["redis_version"].split(".")[0]) < 7:
        return
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            push(fresh, "2", ("b", 1))
        assert [job.id for job in claim(fresh, lease).jobs] == ["1"]
    finally:
        client.config_set("maxmemory", 0)


def test_a_subscription_that_redis_cuts_says_so(store, client):
    """Else what is announced while redis-py connects again is missed."""
    subscription = store.subscribe([ONE])
    failed = threading.Event()

    def listen():
        try:
            while True:
                subscription.wait_pushed(0.2)
        except StoreUnavailable:
            failed.set()

    threading.Thread(target=listen, daemon=True).start()
    eventually(lambda: client.execute_command("CLIENT", "KILL", "TYPE", "pubsub"))
    assert failed.wait(10)


def test_a_returned_job_may_be_given_a_pause(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    assert end(store, lease, claimed, Fate.RETURN, delay=60).next_due > 1e9
    assert waiting(store, "1") == [("a", 1)]


def test_many_processes_may_adopt_a_new_count_at_once(client):
    """Nobody is refused, and no id lies in two shards."""
    for turn in range(15):
        old, new = QueueSpec(f"q{turn}", shards=5), QueueSpec(f"q{turn}", shards=8)
        store = RedisStore(client)
        push(store, "1", ("a", 1), queue=old)
        Actions(store).delete(old, ["1"])
        errors = []

        def pusher(number, queue=new, errors=errors):
            try:
                RedisStore(client).push(queue, [NewJob(f"id-{number}-{step}", b"x") for step in range(20)])
            except Exception as error:  # noqa: BLE001 - the test shows whatever it is
                errors.append(error)

        threads = [threading.Thread(target=pusher, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert Queries(store).stats(new).length == 120
        page = Queries(store).jobs(new, "perform_in", limit=1000).items
        assert len({job.id for job in page}) == 120


def test_a_closed_shard_is_not_opened_by_a_call_of_the_old_count(store, client):
    """While the count changes, an old caller waits; then he is refused."""
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
    """Whoever closed it died over it."""
    push(store, "1", ("a", 1))
    Actions(store).delete(ONE, ["1"])
    client.hset(shard_keys(SHARD)["meta"], "shards", "closed")
    push(store, "1", ("b", 1))
    assert waiting(store, "1") == [("b", 1)]
