"""How a worker ends by an async def task, or with one."""

from __future__ import annotations

import pytest

from tests.waiting import eventually


@pytest.fixture(autouse=True)
def more_tasks(monkeypatch):
    """The project has the tasks of this file, too."""
    monkeypatch.setenv("PROJ_MORE", "1")


@pytest.mark.parametrize("what, status", [("exit", 3), ("stop", 70)])
def test_a_body_that_ends_its_worker(app, start_worker, ledger, what, status):
    awaits = app.tasks["awaits"]
    awaits.delay("1", what)
    node = start_worker(lanes=1, wait=False)
    assert node.exit_status() == status
    assert "CRITICAL" in node.logs()
    if what == "stop":
        assert "the event loop of async def tasks has ended" in node.logs()
    job = awaits.ordered_queue.job("1")
    assert (job.waiting, job.processing is not None) == (None, True)


@pytest.mark.full
def test_a_process_in_which_a_body_comes_back_ends_there(app, start_worker, ledger):
    awaits = app.tasks["awaits"]
    awaits.perform_async([{"id": "1", "payload": "fork"}, {"id": "2", "payload": "x"}])
    node = start_worker(lanes=1)
    eventually(lambda: awaits.ordered_queue.stats().processed == 2)
    (child,) = {line["pid"] for line in ledger.lines("child")}
    assert [(line["child"], line["status"]) for line in ledger.lines("reaped")] == [(child, 70)]
    assert f"came back in process {child}" in node.logs()
    node.kill("SIGTERM")
    assert node.exit_status() == 0


def test_a_cold_shutdown_cancels_bodies_and_returns_their_jobs(app, start_worker, ledger):
    awaits = app.tasks["awaits"]
    awaits.delay("1", "sleep")
    node = start_worker(lanes=1)
    ledger.wait_for("start")
    node.kill("SIGQUIT")
    node.exit_status()
    ledger.wait_for("end")
    job = awaits.ordered_queue.job("1")
    assert (job.waiting.retry_count, job.processing) == (-1, None)
