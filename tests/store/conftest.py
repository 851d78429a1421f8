"""A store on an empty server: the one at hand, and Redis 6.2; or on a cluster (``nox -s cluster``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_lowkiq.store.cluster_client import ClusterClient
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions, Pausing
from tests.clusters import Cluster
from tests.marks import SERVERS, first_often, keep_those_of_a_cluster
from tests.roles import OF_TESTS, WITH_ROLES, client_of
from tests.store.aging import AgingStore
from tests.store.on_cluster import ClusterAsServer

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a cluster, only what is of use there runs."""
    keep_those_of_a_cluster(config, items, HERE, "client")


@pytest.fixture(params=first_often(SERVERS))
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis | ClusterAsServer]:
    if request.param == "cluster":
        yield from _on_cluster(request.getfixturevalue("cluster"), request)
        return
    name = "redis_server" if request.param == "here" else "redis_62_server"
    server = request.getfixturevalue(name)
    client = connect({"path": server.socket_path}, pool_size=8, pool_timeout=5)
    client.flushall()
    yield client
    client.connection_pool.disconnect()


def _on_cluster(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[ClusterAsServer]:
    cluster.flush()
    monkeypatch = request.getfixturevalue("monkeypatch")
    # Tests send their own commands to it.
    monkeypatch.setattr(ClusterClient, "redis", property(lambda servers: servers.map), raising=False)
    client = ClusterAsServer(cluster)
    yield client
    client.close()


@pytest.fixture
def store(client: redis.Redis) -> Iterator[RedisStore]:
    """On one server, with a worker's rights if LOWKIQ_TEST_ROLES=1 (``nox -s roles``)."""
    if not WITH_ROLES:
        yield AgingStore(client)
        return
    with client_of(client.connection_pool.connection_kwargs["path"], "worker", extra=OF_TESTS) as restricted:
        yield AgingStore(restricted)


@pytest.fixture
def pausing(store: RedisStore) -> Pausing:
    return Pausing(store.client)


@pytest.fixture
def actions(store: RedisStore) -> Actions:
    return Actions(store.client)
