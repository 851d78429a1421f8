"""Nodes hand their shards over at once, also when Redis has just failed over, or slots have just moved."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer, find_server
from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.claims import lag
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.shares import lease_splitter
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.connect import connect, connect_cluster
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.worker.runtime import Runtime
from tests.clusters import running_cluster
from tests.ports import free_port
from tests.unit.fakes import FakeHost, FakeRunner
from tests.waiting import eventually

#: In s; a shard whose owner is not known to have released it waits for 1.05 of them.
LEASE = 30.0
#: In s. Without load, a hand-over takes less than 0.1; what waits for the next look, a fifth of LEASE.
AT_ONCE = 4.0
#: In s, for a cluster that has just lost a process: in some runs, the other node sees a release at its next
#: look.
FAR_BELOW = 15.0
QUEUE = QueueSpec("handed", shards=6)


@contextlib.contextmanager
def running(store, owner):
    runtime = Runtime(
        store,
        FakeRunner(),
        FakeHost(),
        [QUEUE],
        lanes=1,
        owner=owner,
        clock=SystemClock(),
        scheduler_factory=lag,
        splitter=lease_splitter,
        poll_interval=1.0,
        lease_seconds=LEASE,
        window=50,
    )
    runtime.start()
    try:
        yield runtime
    finally:
        runtime.drain()
        assert runtime.join(30)


def owners(store):
    return [state and state.owner for state in store.observe(QUEUE.shard_refs())]


def handed_over(store, leaving):
    """Seconds until the other node has all shards of one that leaves."""
    # Each has its half: on the way there, a shard has no owner for a moment.
    eventually(lambda: Counter(owners(store)) == {"a": 3, "b": 3}, 90)
    began = time.monotonic()
    leaving.drain()
    eventually(lambda: set(owners(store)) == {"b"}, 90)
    return time.monotonic() - began


@pytest.mark.full
def test_slots_that_have_just_moved_hold_up_no_hand_over():
    with running_cluster() as cluster, contextlib.ExitStack() as stack:

        def store():
            made = RedisStore(connect_cluster({"cluster": cluster.addresses}, pool_size=4, pool_timeout=5))
            stack.callback(made.close)
            return made

        mine = store()
        with running(store(), "a") as leaving, running(store(), "b"):
            eventually(lambda: set(owners(mine)) == {"a", "b"}, 90)
            for shard in QUEUE.shard_refs():
                slot = slot_of(shard_keys(shard)["meta"])
                cluster.move(slot, (cluster.owner(slot) + 1) % 3)
            seconds = handed_over(mine, leaving)
    print(f"after moves of slots: {seconds:.3f} s")
    assert seconds < AT_ONCE


@pytest.mark.full
def test_a_replica_of_a_cluster_that_is_promoted_holds_up_no_hand_over():
    """The lease that it has was given by another process: without its owner's word, it waits for 31.5 s."""
    with running_cluster(replicas=3) as cluster, contextlib.ExitStack() as stack:

        def store():
            parameters = {"cluster": cluster.addresses, "socket_timeout": 0.75}
            made = RedisStore(connect_cluster(parameters, pool_size=4, pool_timeout=5))
            stack.callback(made.close)
            return made

        mine = store()
        with running(store(), "a") as leaving, running(store(), "b"):
            eventually(lambda: Counter(owners(mine)) == {"a": 3, "b": 3}, 90)
            eventually(lambda: all(map(_follows, cluster.servers[3:])), 30)
            shard = QUEUE.shard_refs()[owners(mine).index("a")]
            slot = slot_of(shard_keys(shard)["meta"])
            dead = cluster.owner(slot)
            cluster.kill(dead)
            eventually(lambda: cluster.ranges(dead + 3), 30)
            seconds = handed_over(mine, leaving)
    print(f"after a promotion: {seconds:.3f} s")
    assert seconds < FAR_BELOW


@pytest.mark.full
def test_a_failover_by_sentinels_holds_up_no_hand_over(tmp_path):
    port = free_port()
    with EmbeddedServer(port=0) as master, EmbeddedServer(port=0) as replica, contextlib.ExitStack() as stack:
        with redis.Redis(port=replica.port) as client:
            client.replicaof("127.0.0.1", master.port)
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
            f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 500\n"
        )
        sentinel = subprocess.Popen(
            [str(find_server()), str(config), "--sentinel"], stdout=subprocess.DEVNULL
        )
        stack.callback(sentinel.wait)
        stack.callback(sentinel.kill)
        parameters = {"sentinels": [("127.0.0.1", port)], "master_name": "mymaster", "socket_timeout": 2}

        def store():
            made = RedisStore(connect(parameters, pool_size=4, pool_timeout=5))
            stack.callback(made.close)
            return made

        mine = store()
        with redis.Redis(port=port) as client:
            eventually(lambda: client.sentinel_masters()["mymaster"]["num-slaves"] == 1, 30)
        with running(store(), "a") as leaving, running(store(), "b"):
            eventually(lambda: set(owners(mine)) == {"a", "b"}, 90)
            eventually(lambda: _follows(replica), 30)
            master.kill()
            eventually(lambda: _answers(mine), 30)
            seconds = handed_over(mine, leaving)
    print(f"after a failover: {seconds:.3f} s")
    assert seconds < AT_ONCE


def _follows(replica):
    with redis.Redis(port=replica.port) as client:
        return client.info("replication")["master_link_status"] == "up"


def _answers(store):
    try:
        return bool(owners(store))
    except StoreUnavailable:
        return False
