"""Stop signals to processes of a worker, as process managers send them: to its group, to all, or to one.

Only the worker reacts, and what it stops counts as no crash.
"""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.marks import full
from tests.waiting import eventually
from tests.worker.checks import is_alive, suspects

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="run_in='process' forks")
SIGNALS = "SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP"
POOLS = "threads", "prefork"


@pytest.fixture
def app(process_app):
    return process_app


@pytest.fixture
def run(app, start_worker, ledger):
    """A worker in a process group of its own, and a call that runs in a child process."""

    def run(pool):
        node = start_worker(module="tests.worker.in_processes", pool=pool, lanes=2, wait=False)
        os.setpgid(node.container.process.pid, 0)
        eventually(node.ready)
        result = app.tasks["act"].delay("1", "gate")
        (begun,) = ledger.wait_for("start")
        return node, result, begun

    return run


def to_group(node, name):
    os.killpg(node.container.process.pid, signal.Signals[name])


def to_all(node, name):
    """To the worker last: it must not be the first to know."""
    to_others(node, name)
    node.kill(name)


def to_others(node, name):
    for process in others(node):
        process.send_signal(signal.Signals[name])


def others(node):
    """All but the worker, and but those of Celery's prefork pool, which are copies of it."""
    worker = psutil.Process(node.container.process.pid)
    return [each for each in worker.children(recursive=True) if each.cmdline() != worker.cmdline()]


CASES = [
    ("threads", "SIGTERM", to_all),
    *(full((pool, "SIGTERM", to_group)) for pool in POOLS),
    *(
        full((pool, name, to_all))
        for pool in POOLS
        for name in SIGNALS
        if (pool, name) != ("threads", "SIGTERM")
    ),
]


@pytest.mark.parametrize("pool, name, send", CASES)
def test_a_stop_lets_runs_end_and_counts_no_crash(app, run, start_worker, ledger, tmp_path, pool, name, send):
    act = app.tasks["act"]
    node, result, begun = run(pool)
    send(node, name)
    is_cold = name == "SIGQUIT"
    if is_cold:
        node.exit_status()
        eventually(lambda: not is_alive(begun["pid"]))
    else:
        eventually(lambda: "ordered queues stop: 1 batch is running" in node.logs())
        if name == "SIGTERM":
            # A second one is no other order. One of the others would be.
            send(node, name)
        assert is_alive(begun["pid"])
    (tmp_path / "gate").touch()
    if is_cold:
        start_worker(module="tests.worker.in_processes", lanes=2)
    assert result.get(timeout=60) == "gate done"
    assert len(ledger.wait_for("end")) == 1
    assert len(ledger.lines("start")) == 1 + is_cold
    assert suspects(act) == 0
    if name == "SIGHUP":
        # Celery cannot restart what began as a module.
        eventually(lambda: "Restarting celery worker" in node.logs())
    elif not is_cold:
        assert node.exit_status() == (0 if name == "SIGTERM" else 1)
    eventually(lambda: not is_alive(begun["pid"]))


@pytest.mark.parametrize("pool", ["prefork", full("threads")])
def test_a_process_of_a_worker_does_not_react_alone(app, run, ledger, tmp_path, pool):
    act = app.tasks["act"]
    node, result, begun = run(pool)
    ours = others(node)
    for name in SIGNALS:
        to_others(node, name)
    (tmp_path / "gate").touch()
    assert result.get(timeout=60) == "gate done"
    assert [line["pid"] for line in ledger.lines("end")] == [begun["pid"]]
    assert act.delay("2", "good").get(timeout=20) == "good done"
    assert suspects(act) == 0
    assert set(ours) <= set(others(node))
