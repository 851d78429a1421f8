"""One server, one worker and one app for all feature tests of a process; a test keeps to ids of its own.

They end with the last of these tests: an idle worker would take time from all tests that follow.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from celery_lowkiq.embedded import EmbeddedServer
from tests.features import proj
from tests.roles import operated_by, users
from tests.waiting import eventually
from tests.worker.nodes import Worker, worker


class Features:
    """The running worker, and what its tasks noted."""

    def __init__(self, app: Celery, operator: Celery, directory: Path, node: Worker) -> None:
        self.app = app
        #: The same app with an operator's rights in Redis.
        self.operator = operator
        self.node = node
        self.directory = directory

    def noted(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        path = self.directory / "ledger"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        wanted = {"event": event, **fields}.items()
        return [line for line in found if all(line.get(name) == value for name, value in wanted)]

    def wait_for(self, event: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        return eventually(lambda: found if len(found := self.noted(event, **fields)) >= count else [], 30.0)

    @contextlib.contextmanager
    def holding(self, task: Any, job_id: str) -> Iterator[None]:
        """What is called meanwhile on the id waits, and is merged."""
        gate = f"gate-{uuid4().hex}"
        task.apply_async((job_id, {"gate": gate}), ignore_result=True)
        try:
            self.wait_for("held", gate=gate)
            yield
        finally:
            self.open(gate)

    def open(self, gate: str) -> None:
        """What is held at the gate goes on."""
        (self.directory / gate).touch()

    def nothing(self) -> contextlib.AbstractContextManager[None]:
        """In place of ``holding``."""
        return contextlib.nullcontext()


@pytest.fixture(scope="package")
def features(tmp_path_factory: pytest.TempPathFactory, session_server: EmbeddedServer) -> Iterator[Features]:
    directory = tmp_path_factory.mktemp("features")
    with contextlib.ExitStack() as stack:
        of_role = stack.enter_context(users(session_server.socket_path))
        app = proj.make_app(session_server.url, **of_role["caller"])
        operator = stack.enter_context(
            operated_by(app, lambda: proj.make_app(session_server.url, **of_role["operator"]))
        )
        env = {"PROJ_URL": session_server.url, "PROJ_SETTINGS": json.dumps(of_role["worker"])}
        node = worker(
            app,
            directory / "worker.log",
            "-E",
            "-n",
            "features@test",
            module="tests.features.proj",
            PROJ_DIRECTORY=directory,
            **env,
        )
        stack.callback(node.teardown)
        eventually(lambda: node.ready() or node.container.status == "exited", 60.0)
        assert node.ready(), node.logs()
        yield Features(app, operator, directory, node)
    # An AsyncResult that ends after its server would wait for it in vain.
    app.backend.remove_pending_result = lambda result: None
    app.close()


@pytest.fixture(scope="package")
def session_server() -> Iterator[EmbeddedServer]:
    """Not the one that other tests empty."""
    with EmbeddedServer(executable=os.environ.get("LOWKIQ_TEST_SERVER") or None) as server:
        yield server


@pytest.fixture
def work(features: Features) -> Any:
    return features.app.tasks["work"]


@pytest.fixture
def gate(features: Features) -> Iterator[str]:
    """A gate that is open at the end: a test that fails must not take a lane from the others."""
    name = f"gate-{uuid4().hex}"
    yield name
    features.open(name)


@pytest.fixture
def new_id() -> Callable[[], str]:
    return lambda: uuid4().hex[:12]


@pytest.fixture
def job_id(new_id: Callable[[], str]) -> str:
    return new_id()


@pytest.fixture
def lowkiq_app(lowkiq_server):
    """An app of the test's own, whose tasks it drains."""
    app = Celery("drained", broker=lowkiq_server.url, set_as_current=False)
    app.conf.worker_hijack_root_logger = False
    return app
