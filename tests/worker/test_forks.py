"""O4: tasks that fork. What the worker holds is its own, and no second process works with it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.marks import first_often
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def more_tasks(monkeypatch):
    """The project has the tasks of this file, too."""
    monkeypatch.setenv("PROJ_MORE", "1")


@pytest.mark.parametrize("how", first_often(["return", "raise", "halt", "exit"]))
def test_a_process_in_which_a_run_comes_back_ends_there(app, settings, start_worker, ledger, how):
    """O4: 31 jobs of one shard, of which the first forks: each ends once, in the worker itself."""
    settings["lowkiq_server_middlewares"] = ["tests.worker.middlewares.ends"]
    forks = app.tasks["forks"]
    forks.delay("0", how)
    forks.perform_async([{"id": n} for n in range(1, 31)])
    node = start_worker(lanes=1)
    ledger.wait_for("around", 31)
    (child,) = {line["pid"] for line in ledger.lines("child")}
    eventually(lambda: forks.ordered_queue.stats().processed == 31)
    lines = ledger.lines("around")
    assert sorted(line["id"] for line in lines) == sorted(str(n) for n in range(31))
    assert {line["pid"] for line in lines} == {node.container.process.pid}
    assert {line["id"] for line in ledger.lines("start")} == {str(n) for n in range(31)}
    assert len(ledger.lines("start")) == 31
    assert [(line["child"], line["status"]) for line in ledger.lines("reaped")] == [(child, 70)]
    (line,) = [line for line in node.logs().splitlines() if "CRITICAL" in line]
    assert f"came back in process {child}" in line
    assert "lane-0 forks/0" in line
    node.kill("SIGTERM")
    assert node.exit_status() == 0


def test_processes_that_never_come_back_are_left_alone(app, start_worker, ledger, tmp_path):
    """O4: multiprocessing and subprocess work, calls in such a process are stored."""
    forks = app.tasks["forks"]
    forks.perform_async([{"id": "1", "payload": "processes"}, {"id": "2", "payload": "for ever"}])
    node = start_worker(lanes=1)
    ledger.wait_for("end", 3)
    (did,) = ledger.lines("processes")
    assert (did["status"], did["squares"], did["printed"]) == (0, [3], "1\n")
    assert did["ended"] == -signal.SIGTERM, "the worker's handler took the signal"
    assert "from a process" in [line["id"] for line in ledger.lines("end")]
    assert "CRITICAL" not in node.logs()
    (child,) = [line["pid"] for line in ledger.lines("child")]
    os.kill(child, 0)
    (tmp_path / "gate").touch()
