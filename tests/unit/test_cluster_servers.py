"""Which servers ``nox -s cluster`` runs on."""

from __future__ import annotations

import pytest

from celery_lowkiq.embedded import ServerNotFound
from tests.clusters import redis_and_valkey


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Make a server on PATH that says what it is."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LOWKIQ_TEST_SERVER", raising=False)

    def make(name, version):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{version}'\n")
        path.chmod(0o755)
        return path

    return make


def test_redis_gets_replicas_and_valkey_comes_after_it(server):
    redis = server("redis-server", "Redis server v=7.0.15 sha=00000000:0")
    (first, (replicas, valkey)) = redis_and_valkey()
    assert first == (3, redis)
    assert (replicas, valkey.name) == (0, "valkey-server")


def test_a_redis_that_is_named_comes_before_that_on_path(server, monkeypatch):
    server("redis-server", "Valkey server v=9.1.2")
    other = server("other", "Redis server v=7.0.15 sha=00000000:0")
    monkeypatch.setenv("LOWKIQ_TEST_SERVER", str(other))
    assert redis_and_valkey()[0] == (3, other)


def test_without_a_redis_there_are_none(server):
    with pytest.raises(ServerNotFound, match=r"redis-server is not on PATH. Install Redis, or name"):
        redis_and_valkey()
    server("redis-server", "Valkey server v=9.1.2")
    with pytest.raises(ServerNotFound, match="redis-server is no Redis"):
        redis_and_valkey()
