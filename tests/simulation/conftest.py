"""Fixtures of the simulation tests."""

from __future__ import annotations

import pytest

from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.redis_store import RedisStore


@pytest.fixture
def store(redis_server):
    client = connect({"path": redis_server.socket_path}, pool_size=2, pool_timeout=5)
    client.flushall()
    yield RedisStore(client)
    client.connection_pool.disconnect()
