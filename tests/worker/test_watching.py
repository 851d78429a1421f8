"""What Flower and `celery inspect` see of ordered runs."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.metrics.queues import queue_registry
from celery_lowkiq.rules.views import WARNING
from tests.waiting import eventually
from tests.worker.listening import Listener


def test_runs_are_task_events(app, start_worker, ledger):
    with Listener(app) as listener:
        start_worker("-E")
        app.tasks["outcome"].delay("1", "ok")
        app.tasks["outcome"].delay("2", "fail")
        eventually(
            lambda: (
                listener.of("task-succeeded") and listener.of("task-retried") and listener.of("task-failed")
            )
        )
    assert len(listener.of("task-received")) == len(listener.of("task-started")) == 3
    assert (
        len(listener.of("task-retried"))
        == len(listener.of("task-failed"))
        == len(listener.of("task-succeeded"))
        == 1
    )
    received = listener.of("task-received")[0]
    assert received["name"] == "outcome"
    runs = {run["task_id"] for run in ledger.lines("run")}
    assert {event["uuid"] for event in listener.events} == runs


@pytest.mark.full
def test_a_rejected_run_is_an_event(app, start_worker):
    with Listener(app) as listener:
        start_worker("-E")
        app.tasks["outcome"].delay("1", "reject")
        eventually(lambda: listener.of("task-rejected"))
    assert len(listener.of("task-rejected")) == 1


def test_inspect_shows_the_run_and_the_lanes(app, start_worker, ledger, tmp_path):
    start_worker()
    app.tasks["gated"].delay("1", {"a": 1})
    ledger.wait_for("start")
    inspect = app.control.inspect(timeout=2.0)
    (active,) = eventually(inspect.active)["w0@test"]
    assert active["name"] == "gated"
    assert active["args"] == [{"1": [{"a": 1}]}]
    lanes = eventually(inspect.stats)["w0@test"]["lowkiq"]["lanes"]
    (running,) = [lane["running"] for lane in lanes if lane["running"]]
    assert running["ids"] == ["1"]
    assert sum(len(lane["shards"]) for lane in lanes) == 14
    (tmp_path / "gate").touch()
    ledger.wait_for("end")
    eventually(lambda: app.control.inspect(timeout=2.0).active() == {"w0@test": []})


@pytest.mark.full
def test_a_run_that_takes_too_long_is_named_everywhere(app, start_worker, ledger, tmp_path):
    gated = app.tasks["gated"]
    with Listener(app) as listener:
        node = start_worker("-E")
        gated.delay("1")
        ledger.wait_for("start")
        gated.delay("1")
        node.wait_for_log("max_run is 0.5 s, 1 job waits behind it")
        (alarm,) = eventually(lambda: listener.of("lowkiq-overdue"))
        inspector = Inspector(app)
        first = eventually(lambda: (found := inspector.doctor()[0]).subject == "node w0@test" and found)
        why = gated.ordered_queue.why("1").text
        metrics = generate_latest(queue_registry(app)).decode()
        (tmp_path / "gate").touch()
    assert (alarm["queue"], alarm["ids"], alarm["waiting"]) == ("gated", ["1"], 1)
    assert (first.level, "has run job 1 of gated for" in first.text) == (WARNING, True)
    assert first.text.endswith("1 job waits behind it.")
    assert "which is overdue (max_run is" in why
    assert 'lowkiq_runs_overdue{queue="gated"} 1.0' in metrics
    assert node.logs().count("has run job 1 of gated") == 1
