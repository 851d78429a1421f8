"""``rate_limit`` holds for an ordered queue across all nodes."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.store.keys import tokens_key
from tests.marks import first_often
from tests.waiting import eventually
from tests.worker.checks import command, leases

RATE, JOBS = 10, 25


@pytest.fixture
def limited(settings):
    """Before the app is made."""
    settings["task_annotations"] = {"record": {"rate_limit": f"{RATE}/s"}}


def has_tokens(app):
    (found,) = context_of(app).store.client.commands([("EXISTS", tokens_key("record"))])
    return bool(found)


def test_the_limit_holds_over_two_nodes_and_other_queues_go_on(limited, app, start_worker, ledger):
    record, outcome = app.tasks["record"], app.tasks["outcome"]
    start_worker()
    start_worker()
    eventually(lambda: {lease.owner[:2] for lease in leases(record)} == {"w0", "w1"})
    pushed_at = time.monotonic()
    record.perform_async([{"id": n} for n in range(JOBS)])
    outcome.delay("1", "ok")
    (run,) = ledger.wait_for("run")
    starts = sorted(line["at"] for line in ledger.wait_for("start", JOBS))
    assert len({line["pid"] for line in ledger.lines("start")}) == 2
    # A full bucket has one token; a run begins after its token was taken, never before.
    for number, at in enumerate(starts):
        assert at - pushed_at >= number / RATE * 0.95
    assert run["at"] < starts[-1]


@pytest.mark.full
def test_limits_are_disabled(limited, app, settings, start_worker, ledger):
    """The tenth run would not begin within the hour."""
    settings["task_annotations"]["record"]["rate_limit"] = "1/h"
    settings["worker_disable_rate_limits"] = True
    start_worker()
    app.tasks["record"].perform_async([{"id": n} for n in range(10)])
    ledger.wait_for("end", 10)
    command(app, "rate_limit", "w0@test", task_name="record", rate_limit="2/h")
    app.tasks["record"].perform_async([{"id": n} for n in range(10)])
    ledger.wait_for("end", 20)
    assert not has_tokens(app)


def test_a_limit_is_set_and_taken_away_at_run_time(app, start_worker, ledger):
    record = app.tasks["record"]
    start_worker()
    record.delay("before")
    ledger.wait_for("end")
    assert not has_tokens(app)
    set_ = command(app, "rate_limit", "w0@test", task_name="record", rate_limit="1/h")
    assert set_ == [{"ok": "new rate limit set successfully"}]
    record.perform_async([{"id": n} for n in range(3)])
    ledger.wait_for("end", 2)
    eventually(lambda: has_tokens(app))
    eventually(lambda: {record.ordered_queue.why(n).kind for n in range(3)} == {"nowhere", "limited"})
    app.tasks["outcome"].delay("1", "ok")
    ledger.wait_for("run")
    eventually(lambda: record.ordered_queue.stats().processed == 2)
    command(app, "rate_limit", "w0@test", task_name="record", rate_limit=0)
    ledger.wait_for("end", 4)


@pytest.mark.parametrize("wrong", first_often(["-1/s", "x", "5/d", "nan"]))
def test_a_bad_limit_is_refused(app, start_worker, wrong):
    start_worker(lanes=1)
    (answer,) = command(app, "rate_limit", "w0@test", task_name="record", rate_limit=wrong)
    assert answer["error"].startswith(f"rate_limit={wrong!r} is invalid: expected a number (runs a second)")


def starts_of(ledger, job_id):
    return [line["at"] for line in ledger.lines("start") if line["id"] == job_id]


@pytest.fixture
def once_an_hour(settings):
    """Before the app is made."""
    settings["task_annotations"] = {"record": {"rate_limit_per_id": "1/h"}}


def test_an_id_without_a_token_holds_nobody_back(once_an_hour, app, start_worker, ledger):
    record = app.tasks["record"]
    start_worker()
    record.delay("hot", 1)
    ledger.wait_for("end")
    record.delay("hot", 2)
    # Wherever these lie, there are some in the shard of the hot one.
    record.perform_async([{"id": n} for n in range(40)])
    ledger.wait_for("end", 41)
    assert len(starts_of(ledger, "hot")) == 1
    eventually(lambda: record.ordered_queue.why("hot").kind == "limited")
    assert record.ordered_queue.stats().lag == 0


@pytest.mark.full
def test_an_id_runs_as_often_as_its_limit_says(app, settings, start_worker, ledger):
    settings["task_annotations"] = {"record": {"rate_limit_per_id": "2/s"}}
    start_worker()
    for n in range(3):
        app.tasks["record"].delay("hot", n)
        eventually(lambda n=n: len(starts_of(ledger, "hot")) == n + 1)
    first, _, third = starts_of(ledger, "hot")
    # A claim comes a little before its run; of both runs.
    assert third - first > 0.75
