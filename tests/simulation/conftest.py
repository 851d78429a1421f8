"""Fixtures of the simulation tests."""

from __future__ import annotations

import pytest

from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.connect import connect


@pytest.fixture
def store(redis_server):
    client = connect({"path": redis_server.socket_path}, pool_size=2, pool_timeout=5)
    client.flushall()
    yield RedisStore(client)
    client.connection_pool.disconnect()
