"""An empty store, an app that calls into it, and workers that end with the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.store.acl import RoleName
from tests.clusters import Cluster
from tests.marks import ON_CLUSTER, keep_those_of_a_cluster
from tests.roles import operated_by, users
from tests.waiting import eventually
from tests.worker import in_processes, proj
from tests.worker.nodes import Worker, worker

HERE = Path(__file__).parent


class Ledger:
    """What the tasks wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        whole = [line for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found = [json.loads(line) for line in whole]
        return [line for line in found if event in (None, line["event"])]

    def wait_for(self, event: str, count: int = 1, seconds: float = 90.0) -> list[dict[str, Any]]:
        return eventually(lambda: found if len(found := self.lines(event)) >= count else [], seconds)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a cluster, only what is of use there runs."""
    keep_those_of_a_cluster(config, items, HERE, "settings")


@pytest.fixture
def settings(settings: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """With LOWKIQ_TEST_CLUSTER=1, the store is a cluster; the broker stays on one server."""
    if not ON_CLUSTER:
        return settings
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.flush()
    return {**settings, "lowkiq_url": cluster.url}


@pytest.fixture
def store_nodes(
    settings: dict[str, Any], empty_redis: EmbeddedServer, request: pytest.FixtureRequest
) -> Iterator[list[redis.Redis]]:
    """A client of each server of the store."""
    if ON_CLUSTER:
        clients = request.getfixturevalue("cluster").clients()
    else:
        clients = [redis.Redis(unix_socket_path=empty_redis.socket_path)]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def role_settings(empty_redis: EmbeddedServer) -> Iterator[dict[RoleName, dict[str, Any]]]:
    """Settings by role (``nox -s roles``); else none."""
    with users(empty_redis.socket_path) as found:
        yield found


@pytest.fixture
def app(settings: dict[str, Any], role_settings: dict[RoleName, dict[str, Any]]) -> Iterator[Celery]:
    made = proj.make_app(**settings, **role_settings["caller"])
    with operated_by(made, lambda: proj.make_app(**settings, **role_settings["operator"])):
        yield made
    made.close()


@pytest.fixture
def process_app(settings: dict[str, Any]) -> Iterator[Celery]:
    """The app of ``in_processes``."""
    settings["result_backend"] = settings["broker_url"]
    made = in_processes.make_app(**settings)
    yield made
    made.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start_worker(
    app: Celery, settings: dict[str, Any], role_settings: dict[RoleName, dict[str, Any]], tmp_path: Path
) -> Iterator[Callable[..., Worker]]:
    """Start a worker and wait until it is ready (unless ``wait=False``)."""
    started: list[Worker] = []

    def start(*options: str, wait: bool = True, **more: Any) -> Worker:
        of_worker = json.dumps(settings | role_settings["worker"])
        env = {"PROJ_DIRECTORY": tmp_path, "PROJ_SETTINGS": of_worker, **more}
        number = len(started)
        node = worker(app, tmp_path / f"worker-{number}.log", "-n", f"w{number}@test", *options, **env)
        started.append(node)
        if wait:
            eventually(lambda: node.ready() or node.container.status == "exited")
            assert node.ready(), node.logs()
        return node

    yield start
    for node in started:
        node.teardown()


@pytest.fixture
def start_prefork(start_worker: Callable[..., Worker]) -> Callable[..., Worker]:
    """Start a worker with Celery's default pool, and two lanes."""

    def start(*options: str, **more: Any) -> Worker:
        return start_worker(*options, **{"pool": "prefork", "lanes": 2, **more})

    return start
