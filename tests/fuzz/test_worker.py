"""What is stored is changed below a `celery worker`: it neither ends nor hangs, nothing innocent is late."""

from __future__ import annotations

import itertools
import os
import time

import pytest

from celery_lowkiq.integration.app import ordered_tasks
from celery_lowkiq.integration.inspector import Inspector
from tests.fuzz.conftest import BUSY, HANG
from tests.fuzz.node import CALM, PARTLY, Node, make_app
from tests.fuzz.test_records import AT_ONCE, ROUNDS, Planter, fill
from tests.waiting import eventually
from tests.worker.engine import open_store
from tests.worker.nodes import worker


class Worker(Node):
    """The engine in a process of its own."""

    def __init__(self, server, folder):
        self.app = make_app(server.url)
        self.inspector = Inspector(self.app, raw=True)
        self.queues = {name: task.queue_spec for name, task in ordered_tasks(self.app).items()}
        self.redis = open_store(server.socket_path).client.servers.redis
        self._numbers, self._ran = itertools.count(), folder / "ran"
        env = {"FUZZ_URL": server.url, "FUZZ_RAN": self._ran}
        self.process = worker(self.app, folder / "log", module="tests.fuzz.worker_app", **env)
        self._pids = (self.process.container.process.pid, server.pid, os.getpid())

    def has_run(self, ids):
        assert self.process.container.status == "running", self.process.logs()[-5000:]
        return self._times().keys() >= set(ids)

    def seconds_since(self, ids):
        """As the worker has written down: this process may look later."""
        times = self._times()
        return time.time() - max(times[job_id] for job_id in ids)

    def _times(self):
        lines = self._ran.read_text().splitlines() if self._ran.exists() else ()
        found = (line.partition(" ") for line in lines)
        return {job_id: float(at) for at, _, job_id in found if job_id.startswith("good-")}


@pytest.fixture
def node(empty_redis, tmp_path):
    node = Worker(empty_redis, tmp_path)
    eventually(lambda: node.process.ready() or node.process.container.status == "exited", 60)
    yield node
    node.process.teardown()
    node.app.close()


@pytest.mark.full
def test_changed_records_below_a_worker(node, fuzz, tmp_path):
    fill(node)
    planter, rounds = Planter(node, str(tmp_path / "canary")), itertools.count(1)

    def attack(random):
        for _ in range(AT_ONCE):
            planter.plant(random)
        innocent = node.ids("orders", (CALM, PARTLY)) + node.ids("calm")
        with node.in_time(innocent):
            node.push("calm", innocent[2:])
            node.push("orders", innocent[:2])
        if next(rounds) % ROUNDS == 0:
            planter.clear()

    fuzz(attack, AT_ONCE, hang=BUSY + HANG)
    print(f"the latest innocent job ran after {node.latest:.3f} s")
    assert not (tmp_path / "canary").exists()
    planter.clear()
    node.push("orders", last := node.ids("orders"))
    eventually(lambda: node.has_run(last))
    node.process.kill("SIGTERM")
    assert node.process.exit_status(30) == 0
    assert "CRITICAL" not in node.process.logs()
