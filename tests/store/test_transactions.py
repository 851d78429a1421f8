"""Transactions over a client of redis-py's: all or nothing, and none where something observes redis-py."""

from __future__ import annotations

import pytest
import redis
from redis import exceptions
from redis.client import Pipeline

from celery_lowkiq.store import exchange
from celery_lowkiq.store.exchange import transact

SETS = [("SET", f"key {n}", "x" * 1000, "EX", 60) for n in range(100)]


@pytest.fixture
def client(empty_redis):
    with redis.Redis(unix_socket_path=empty_redis.socket_path, max_connections=1) as client:
        yield client


@pytest.mark.parametrize("packs", [exchange.pack_command, None], ids=["hiredis", "redis-py"])
def test_all_commands_are_executed(client, monkeypatch, packs):
    monkeypatch.setattr(exchange, "pack_command", packs)
    assert transact(client, SETS)
    assert client.dbsize() == len(SETS)
    assert 0 < client.ttl("key 0") <= 60


def test_none_is_executed_if_one_is_refused(client):
    with pytest.raises(exceptions.ResponseError, match="wrong number of arguments"):
        transact(client, [*SETS, ("SET", "too few")])
    assert client.dbsize() == 0


def test_a_command_that_fails_is_an_error(client):
    client.set("text", "")
    with pytest.raises(exceptions.ResponseError, match="WRONGTYPE"):
        transact(client, [("HSET", "text", "field", "value")])


def test_it_is_repeated_when_the_connection_is_lost(client):
    transact(client, SETS[:1])
    (connection,) = client.connection_pool._available_connections
    read, failures = connection.read_response, [exceptions.ConnectionError("lost")]

    def fails_once(*args, **options):
        if failures:
            raise failures.pop()
        return read(*args, **options)

    connection.read_response = fails_once
    connection.retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
    assert transact(client, SETS[1:2])
    assert failures == []
    assert client.dbsize() == 2


def test_an_interrupted_one_leaves_no_replies_behind(client):
    transact(client, SETS[:1])
    (connection,) = client.connection_pool._available_connections

    def stops(*args, **options):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection, "read_response", stops)
        with pytest.raises(KeyboardInterrupt):
            transact(client, SETS[1:2])
    assert client.get("key 0") == b"x" * 1000


def test_nothing_is_sent_past_a_tracer(client, monkeypatch):
    monkeypatch.setattr(Pipeline, "execute", lambda self: None)
    assert not transact(client, SETS)
    assert client.dbsize() == 0
