"""A failover on a cluster loses what a migration did in the shards of one master."""

from __future__ import annotations

import contextlib

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.store import durability, registry
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.connect import connect_cluster
from celery_lowkiq.store.keys import queue_key, shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.resharding import Migrations
from tests.clusters import running_cluster
from tests.store.helpers import claim, end
from tests.waiting import eventually

FORMER, QUEUE = QueueSpec("orders", shards=6), QueueSpec("orders", shards=12, batch_size=100)
CONFIG = {
    "cluster-node-timeout": "1000",
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}


def numbers(first, count):
    return [Call(str(number), b"x", None) for number in range(first, first + count)]


def cut_off(cluster, master):
    """Let the replica of a master follow no more."""
    cluster.ask(master, "ACL", "SETUSER", "default", "-psync", "-sync")
    cluster.ask(master, "CLIENT", "KILL", "TYPE", "replica")


def is_in_sync(cluster, master):
    about = cluster.ask(master, "INFO", "replication")
    replica = about.get("slave0", {})
    return replica.get("state") == "online" and replica["offset"] == about["master_repl_offset"]


def fail_over(cluster, master):
    slot = cluster.ranges(master)[0][0]
    cluster.kill(master)
    eventually(lambda: any(a <= slot <= b for n in cluster.living for a, b in cluster.ranges(n)), 30)


@contextlib.contextmanager
def a_queue():
    """A cluster with a queue, and a master without the queue's own key, whose replica is in sync."""
    with running_cluster(replicas=3, config=CONFIG) as cluster:
        client = connect_cluster({"cluster": cluster.addresses}, pool_size=4, pool_timeout=5)
        store = RedisStore(client)
        store.push(FORMER, numbers(0, 300))
        of_queue = cluster.owner(slot_of(queue_key("orders")))
        homes = [cluster.owner(slot_of(shard_keys(shard)["meta"])) for shard in FORMER.shard_refs()]
        victim = next(home for home in homes if home != of_queue)
        eventually(lambda: is_in_sync(cluster, victim))
        yield cluster, store, victim
        store.close()


def run_all(store):
    """Own each shard, and run what waits; the ids in the order of their runs."""
    (queue,) = registry.as_stored(store.client, [QUEUE])
    shards = queue.shard_refs()
    states = eventually(lambda: None not in (seen := store.observe(shards)) and seen)
    watches = [LeaseWatch(queue, *each) for each in zip(shards, states, strict=True)]
    done = []
    for watch in watches:
        lease = store.acquire(queue, watch.shard, "me", watch.seen, 0)
        while (claimed := claim(store, lease)).jobs:
            done += [job.id for job in claimed.jobs]
            end(store, lease, claimed, queue=queue)
        assert store.release(lease)
    return done


@pytest.mark.full
@pytest.mark.parametrize("lost_from", [None, Phase.MOVE, Phase.SEAL], ids=["begin", "move", "seal"])
def test_a_shard_whose_master_has_lost_the_end_of_a_migration_is_moved_again(lost_from):
    with a_queue() as (cluster, store, victim):
        mover, migrations = store.mover(FORMER), Migrations(store.client, "orders")
        assert migrations.begin(12)
        while lost_from is not None and migrations.read().phase is not lost_from:
            mover.turn()
        cut_off(cluster, victim)
        while migrations.read():
            mover.turn()
        fail_over(cluster, victim)

        # Each shard takes calls again, and what the replica had is run.
        store.push(QUEUE, numbers(1000, 200), pauses=[0.2] * 50)
        while migrations.read():
            mover.turn()
        (known,) = registry.as_stored(store.client, [FORMER])
        assert known.layout == QUEUE.layout
        done = run_all(store)
        assert {*map(str, range(1000, 1200))} <= {*done}
        if lost_from is Phase.SEAL:
            assert sorted(done, key=int) == [*map(str, range(300)), *map(str, range(1000, 1200))]


@pytest.mark.full
def test_a_migration_waits_for_the_replica_of_a_master_that_has_one(monkeypatch):
    """Though calls wait for none: what it moves was stored long before."""
    monkeypatch.setattr(durability, "CONFIRM_SECONDS", 0.2)
    with a_queue() as (cluster, store, victim):
        cluster.freeze(victim + 3)
        mover, migrations = store.mover(FORMER), Migrations(store.client, "orders")
        assert migrations.begin(12)
        for _ in range(5):
            with contextlib.suppress(StoreUnavailable):
                mover.turn()
        assert migrations.read().phase is Phase.FLIP
        cluster.thaw(victim + 3)
        monkeypatch.undo()
        while migrations.read():
            mover.turn()
        fail_over(cluster, victim)
        assert sorted(run_all(store), key=int) == [*map(str, range(300))]
        assert store.client.commands([("HGET", queue_key("orders"), "gen")]) == [b"1"]
