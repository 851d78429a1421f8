"""Shutdown with a deadline: ``lowkiq_shutdown_timeout``."""

from __future__ import annotations

import time

import pytest

from tests.marks import first_often
from tests.waiting import eventually
from tests.worker.checks import leases, overlaps, suspects

TIMEOUT = 1.0
LEASE = 60.0


@pytest.fixture
def gated(app, settings):
    settings |= {"lowkiq_shutdown_timeout": TIMEOUT, "lowkiq_lease_seconds": LEASE}
    app.conf.update(settings)
    return app.tasks["gated"]


@pytest.mark.parametrize("times", first_often([1, 3]))
def test_what_runs_for_longer_is_run_again_by_the_next_worker_at_once(
    gated, start_worker, ledger, tmp_path, times
):
    """It is no crash, however often it happens; and the next worker does not wait for a lease."""
    gated.delay("1", "payload")
    for number in range(times):
        node = start_worker()
        ledger.wait_for("start", number + 1, LEASE / 2)
        began = time.monotonic()
        node.kill("SIGTERM")
        assert node.exit_status(LEASE / 2) == 0, node.logs()
        assert time.monotonic() - began >= TIMEOUT
        assert "left to the next worker after 1.0 s" in node.logs()
        assert {lease.owner for lease in leases(gated)} == {""}
        assert (gated.ordered_queue.stats().busy, suspects(gated)) == (1, 0)
    (tmp_path / "gate").touch()
    start_worker()
    ledger.wait_for("end", seconds=LEASE / 2)
    eventually(lambda: gated.ordered_queue.stats().processed == 1)
    assert len(ledger.lines("start")) == times + 1
    assert suspects(gated) == 0
    assert overlaps(ledger.lines()) == []


@pytest.mark.full
def test_what_ends_in_time_is_settled_and_nobody_waits_for_longer(gated, start_worker, ledger, tmp_path):
    gated.delay("1")
    node = start_worker()
    ledger.wait_for("start", 1, LEASE / 2)
    node.kill("SIGTERM")
    node.wait_for_log("ordered queues stop: 1 batch is running")
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0, node.logs()
    stats = gated.ordered_queue.stats()
    assert (stats.length, stats.busy, stats.processed) == (0, 0, 1)


@pytest.mark.full
def test_other_functions_that_run_at_exit_come_before(gated, start_worker, ledger):
    """Until they are done the run may go on, so nobody else may have its shard."""
    gated.delay("1")
    node = start_worker(PROJ_AT_EXIT="1")
    ledger.wait_for("start", 1, LEASE / 2)
    node.kill("SIGTERM")
    assert node.exit_status(LEASE / 2) == 0, node.logs()
    (line,) = ledger.lines("at exit")
    assert line["owned"]
    assert {lease.owner for lease in leases(gated)} == {""}
