"""A store on an empty server: the one at hand, and Redis 6.2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_lowkiq.store.admin.actions import Actions
from celery_lowkiq.store.admin.pausing import Pausing
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.connect import connect
from tests.marks import SERVERS


@pytest.fixture(params=SERVERS)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    name = "redis_server" if request.param == "here" else "redis_62_server"
    server = request.getfixturevalue(name)
    client = connect({"path": server.socket_path}, pool_size=8, pool_timeout=5)
    client.flushall()
    yield client
    client.connection_pool.disconnect()


@pytest.fixture
def store(client: redis.Redis) -> RedisStore:
    return RedisStore(client)


@pytest.fixture
def pausing(store: RedisStore) -> Pausing:
    return Pausing(store.client)


@pytest.fixture
def actions(store: RedisStore) -> Actions:
    return Actions(store)
