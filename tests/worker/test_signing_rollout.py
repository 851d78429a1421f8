"""Signing is turned on and off, and its keys are replaced, while calls are made: nothing is lost."""

from __future__ import annotations

import itertools
import json
import os
import threading

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from tests.waiting import eventually
from tests.worker.nodes import worker
from tests.worker.signing_proj import NEW, OLD, make_app

IDS = 8


class Load:
    """A thread that calls ``pay`` without a pause; :meth:`switch` has it call with other settings."""

    def __init__(self, server, directory):
        self.server = server
        self.directory = directory
        self.ledger = directory / "ledger"
        self.sent = 0
        self.app = None
        self._nodes = itertools.count()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._call)

    def switch(self, **settings):
        app = make_app(self.server.url, **settings)
        with self._lock:
            former, self.app = self.app, app
        if former is not None:
            former.close()

    def start_worker(self, **settings):
        env = {
            "SIGNING_URL": self.server.url,
            "SIGNING_LEDGER": self.ledger,
            "C_FORCE_ROOT": 1,
            "SIGNING_SETTINGS": json.dumps({"lowkiq_lease_seconds": 2, **settings}),
        }
        number = next(self._nodes)
        log = self.directory / f"worker-{number}.log"
        node = worker(self.app, log, "-n", f"w{number}@test", module="tests.worker.signing_proj", **env)
        eventually(lambda: node.ready() or node.container.status == "exited")
        assert node.ready(), node.logs()
        return node

    def _call(self):
        while not self._stop.is_set():
            with self._lock:
                number = self.sent
                self.app.tasks["pay"].apply_async((number % IDS, number), ignore_result=True)
                self.sent += 1
            # So that the workers of a busy machine keep up.
            self._stop.wait(0.002)

    def ran(self):
        lines = self.ledger.read_text().splitlines(keepends=True) if self.ledger.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def done(self, upto):
        """Whether the calls before that number have run."""
        return set(range(upto)) <= {number for _, _, number in self.ran()}

    def more(self, count=100):
        """Wait for that many further calls, and that what was called before has run."""
        before = self.sent
        eventually(lambda: self.sent >= before + count)
        eventually(lambda: self.done(before + count))

    def check(self):
        """All calls have run, each once, in order within its id; the morgue is empty."""
        self._stop.set()
        self._thread.join(30)
        eventually(lambda: self.done(self.sent))
        stats = self.app.tasks["pay"].ordered_queue.stats()
        assert stats.morgue_length == 0
        by_id = {}
        for _, job_id, number in self.ran():
            by_id.setdefault(job_id, []).append(number)
        for numbers in by_id.values():
            assert numbers == sorted(set(numbers))
        assert sum(map(len, by_id.values())) == self.sent

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join(30)
        self.app.close()


@pytest.fixture
def server():
    with EmbeddedServer() as server:
        yield server


OFF = {"lowkiq_signing": "off", "lowkiq_signing_keys": None}
ACCEPT = {"lowkiq_signing": "accept"}
REQUIRE = {"lowkiq_signing": "require"}


@pytest.mark.full
def test_a_rollout_from_off_to_require_and_back_loses_nothing(server, tmp_path):
    """Workers are replaced one at a time, so that old and new ones work and call beside each other."""
    load = Load(server, tmp_path)
    load.switch(**OFF)
    nodes = [load.start_worker(**OFF) for _ in range(2)]
    try:
        with load:
            load.more()
            for settings in (ACCEPT, REQUIRE, ACCEPT, OFF):
                for place, node in enumerate(nodes):
                    nodes[place] = load.start_worker(**settings)
                    load.more()
                    node.kill("SIGTERM")
                    assert node.exit_status(60) == 0
                    load.switch(**settings)
                # Before anything must be signed, all that is not has run.
                load.more()
            load.check()
    finally:
        for node in nodes:
            node.teardown()


@pytest.mark.full
def test_keys_are_replaced_under_load_without_a_restart(server, tmp_path):
    """A file of keys: the new one is known to all, then signs, then is the only one."""
    path = tmp_path / "keys.json"

    def write(**keys):
        fresh = tmp_path / "fresh"
        fresh.write_text(json.dumps(keys))
        os.replace(fresh, path)

    write(old=OLD)
    load = Load(server, tmp_path)
    settings = {"lowkiq_signing": "require", "lowkiq_signing_keys": str(path)}
    load.switch(**settings)
    node = load.start_worker(**settings)
    try:
        with load:
            for keys in ({"old": OLD, "new": NEW}, {"new": NEW, "old": OLD}, {"new": NEW}):
                load.more(50)
                write(**keys)
                ring = context_of(load.app).signing
                eventually(lambda keys=keys, ring=ring: list(ring._secrets) == list(keys))
            load.more(50)
            load.check()
        assert "lowkiq_signing_keys has changed: 1 keys" in node.logs()
        assert OLD not in node.logs()
    finally:
        node.teardown()
