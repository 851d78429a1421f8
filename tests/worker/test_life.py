"""The life of a worker with lanes, beside the signals that ``test_stopping`` has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.marks import first_often
from tests.processes import ROOT
from tests.waiting import eventually
from tests.worker.checks import command, released
from tests.worker.test_watching import Listener

ORDER = """
from celery.worker.consumer import Consumer
from tests.worker.proj import app
app.finalize()
blueprint = Consumer.Blueprint(steps=app.steps["consumer"])
blueprint.steps = blueprint.claim_steps()
print(*(step.name.rpartition(".")[2] for step in blueprint._finalize_steps(blueprint.steps)))
"""


@pytest.mark.parametrize("seed", first_often(range(8)))
def test_lanes_start_last_and_stop_first_whatever_the_hash_seed(seed):
    """Celery sorts its steps from a set: only what is required comes before."""
    env = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", ORDER], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    steps = done.stdout.split()
    assert {"Heart", "Gossip", "Control", "Tasks", "Events"} < set(steps), done.stderr
    assert steps[-2:] == ["OrderedQueues", "Evloop"]


@pytest.fixture
def runs_and_waits(app, start_worker, ledger):
    """A worker of one lane with a job that runs, and one that waits."""

    def start(*options, **env):
        node = start_worker(*options, lanes=1, **env)
        app.tasks["gated"].delay("runs")
        ledger.wait_for("start")
        app.tasks["gated"].delay("waits")
        return node

    return start


def drained(app, ledger):
    """What ran has ended, nothing else began, and the shards are given up."""
    stats = app.tasks["gated"].ordered_queue.stats()
    assert [line["id"] for line in ledger.lines("start")] == ["runs"]
    assert [line["id"] for line in ledger.lines("end")] == ["runs"]
    assert (stats.length, stats.busy, stats.processed) == (1, 0, 1)
    assert released(app.tasks["gated"])


def test_control_shutdown_drains(app, runs_and_waits, ledger, tmp_path):
    node = runs_and_waits()
    app.control.shutdown()
    node.wait_for_log("ordered queues stop: 1 batch is running")
    assert node.container.status == "running"
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0, node.logs()
    assert "Restart=always" not in node.logs()
    drained(app, ledger)


@pytest.mark.parametrize("first", first_often(["the command", "SIGTERM"]))
def test_control_shutdown_ends_no_drain(app, runs_and_waits, ledger, tmp_path, first):
    """Asked for again, it is what goes on already; and the worker still hears what comes after it."""
    node = runs_and_waits()
    app.control.shutdown() if first == "the command" else node.kill(first)
    node.wait_for_log("ordered queues stop: 1 batch is running")
    app.control.shutdown()
    node.wait_for_log("received another shutdown command")
    assert command(app, "ping", "w0@test") == [{"ok": "pong"}]
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0, node.logs()
    drained(app, ledger)


def test_a_soft_shutdown_lets_runs_end_and_begins_none(app, settings, runs_and_waits, ledger, tmp_path):
    settings["worker_soft_shutdown_timeout"] = 5
    node = runs_and_waits()
    node.kill("SIGQUIT")
    node.wait_for_log("Initiating Soft Shutdown")
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0, node.logs()
    drained(app, ledger)


@pytest.mark.full
def test_a_soft_shutdown_leaves_what_takes_longer_to_others(app, settings, runs_and_waits, ledger):
    settings["worker_soft_shutdown_timeout"] = 0.5
    node = runs_and_waits()
    node.kill("SIGQUIT")
    assert node.exit_status() == 0, node.logs()
    assert app.tasks["gated"].ordered_queue.stats().busy == 1
    assert [line["id"] for line in ledger.lines("start")] == ["runs"]


@pytest.mark.full
def test_remap_sigterm_makes_term_a_cold_shutdown(app, runs_and_waits, ledger):
    node = runs_and_waits(REMAP_SIGTERM="SIGQUIT")
    node.kill("SIGTERM")
    assert node.exit_status() == 0, node.logs()
    assert app.tasks["gated"].ordered_queue.stats().busy == 1
    assert not ledger.lines("end")


class Heartbeats(Listener):
    def _heard(self, event):
        if event["type"] == "worker-heartbeat":
            self.events.append(event)


@pytest.mark.full
def test_a_draining_worker_beats_and_obeys(app, runs_and_waits, ledger, tmp_path):
    """A ping is not all: it shows what runs, and counts as alive in Flower."""
    node = runs_and_waits("--heartbeat-interval", "1")
    node.kill("SIGTERM")
    node.wait_for_log("ordered queues stop: 1 batch is running")
    with Heartbeats(app) as listener:
        eventually(lambda: len(listener.of("worker-heartbeat")) >= 2)
    active = app.control.inspect(timeout=10, limit=1).active()
    assert [task["name"] for task in active["w0@test"]] == ["gated"]
    for change in ("add_consumer", "cancel_consumer"):
        assert command(app, change, "w0@test", queue="gated") == [
            {"error": "ordered queue gated: the worker stops"}
        ]
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0, node.logs()
    drained(app, ledger)


@pytest.mark.full
def test_a_draining_worker_shows_its_lanes_and_lets_nobody_change_them(app, runs_and_waits, ledger, tmp_path):
    node = runs_and_waits()
    node.kill("SIGTERM")
    node.wait_for_log("ordered queues stop: 1 batch is running")
    (stats,) = command(app, "stats", "w0@test")
    (shown,) = command(app, "lowkiq", "w0@test")
    for picture in (stats["lowkiq"], shown):
        assert [lane["running"]["ids"] for lane in picture["lanes"]] == [["runs"]]
    assert command(app, "pool_grow", "w0@test", n=1)[0]["error"].startswith("pool_grow: the number of lanes")
    for change in ("lowkiq_quiet", "lowkiq_unquiet"):
        assert command(app, change, "w0@test") == [{"error": "the worker stops"}]
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0, node.logs()
    drained(app, ledger)


@pytest.mark.full
def test_what_was_revoked_stays_so_over_a_restart(app, settings, start_worker, ledger, tmp_path):
    app.conf.lowkiq_track_calls = settings["lowkiq_track_calls"] = True
    record, statedb = app.tasks["record"], f"--statedb={tmp_path / 'state'}"
    node = start_worker(statedb, "-X", "record")
    gone = record.delay("gone")
    record.delay("stays")
    # Sent until the worker has it: one that has just started may not listen yet.
    eventually(lambda: gone.revoke() or f"flagged as revoked: {gone.id}" in node.logs())
    node.kill("SIGTERM")
    assert node.exit_status() == 0, node.logs()
    start_worker(statedb)
    ledger.wait_for("end")
    eventually(lambda: (s := record.ordered_queue.stats()).length == s.busy == 0)
    assert [line["id"] for line in ledger.lines("start")] == ["stays"]
