"""One worker and one Flower that watches it, for all tests of a module."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_lowkiq.embedded import EmbeddedServer
from tests.flower.processes import FlowerSite, flower
from tests.waiting import eventually
from tests.worker import proj
from tests.worker.conftest import Ledger
from tests.worker.nodes import Worker, worker


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flower")


@pytest.fixture(scope="module")
def settings(redis_server: EmbeddedServer) -> dict[str, Any]:
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
    return {"broker_url": redis_server.url, "lowkiq_track_calls": True}


@pytest.fixture(scope="module")
def env(settings: dict[str, Any], directory: Path) -> dict[str, str]:
    return {"PROJ_DIRECTORY": str(directory), "PROJ_SETTINGS": json.dumps(settings)}


@pytest.fixture(scope="module")
def app(settings: dict[str, Any]) -> Iterator[Celery]:
    made = proj.make_app(**settings)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ledger(directory: Path) -> Ledger:
    return Ledger(directory / "ledger")


@pytest.fixture(scope="module")
def node(app: Celery, env: dict[str, str], directory: Path) -> Iterator[Worker]:
    started = worker(app, directory / "worker.log", "-n", "w0@test", "-E", **env)
    yield started
    started.teardown()


@pytest.fixture(scope="module")
def site(app: Celery, node: Worker, env: dict[str, str], directory: Path) -> Iterator[FlowerSite]:
    """Flower, once it has seen events of the worker."""
    with flower(directory, "lowkiq", "flower", **env) as found:
        eventually(lambda: node.ready())
        numbers = itertools.count()
        eventually(lambda: app.tasks["record"].delay(f"canary-{next(numbers)}", "x") and tasks(found), 60)
        yield found


def tasks(site: FlowerSite) -> list[dict[str, Any]]:
    """What Flower knows of runs, the latest first."""
    return list(site.json("/api/tasks").values())
