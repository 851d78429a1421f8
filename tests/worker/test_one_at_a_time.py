"""One job at a time for each id, which others do with a lock: of three calls none is dropped."""

from __future__ import annotations

import time

from tests.waiting import eventually
from tests.worker.checks import overlaps


def test_three_calls_of_which_the_third_meets_a_running_job(app, settings, start_worker, ledger, tmp_path):
    """With the lock it exits at once, and what it said is lost; here it runs next. Nothing expires meanwhile,
    as the lock does after its hour.
    """
    lease = settings["lowkiq_lease_seconds"] = app.conf.lowkiq_lease_seconds = 1.0
    gated = app.tasks["gated"]
    start_worker()
    gated.delay("1", "first")
    (first,) = ledger.wait_for("start")
    gated.delay("2", "second")
    gated.delay("1", "third")
    ledger.wait_for("start", 2)
    eventually(lambda: time.monotonic() > first["at"] + 3 * lease)
    assert sorted(line["id"] for line in ledger.lines("start")) == ["1", "2"]
    (tmp_path / "gate").touch()
    ledger.wait_for("end", 3)
    assert sorted(line["id"] for line in ledger.lines("end")) == ["1", "1", "2"]
    assert overlaps(ledger.lines()) == []
    eventually(lambda: gated.ordered_queue.stats().processed == 3)
