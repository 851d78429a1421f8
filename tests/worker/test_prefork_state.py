"""Celery's default pool: what remote control asks of the node process, and its successors."""

from __future__ import annotations

import os
import signal

import pytest

from tests.waiting import eventually
from tests.worker import in_processes
from tests.worker.checks import command, shares
from tests.worker.test_deaths import settled
from tests.worker.test_prefork import node_pid
from tests.worker.test_watching import Listener


@pytest.fixture
def with_results(app, settings):
    """A call that nobody asks about has no id in the store."""
    settings["task_ignore_result"] = app.conf.task_ignore_result = False
    settings["result_backend"] = app.conf.result_backend = settings["broker_url"]


@pytest.mark.full
def test_a_rate_limit_is_set_at_run_time_and_stays(app, start_prefork, ledger):
    node = start_prefork()
    first = node_pid(app)
    command(app, "rate_limit", "w0@test", task_name="record", rate_limit="1/h")
    app.tasks["record"].perform_async([{"id": n} for n in range(5)])
    ledger.wait_for("end", 1)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: node.logs().count("ordered queues are served by process") == 2)
    assert node_pid(app) != first
    app.tasks["outcome"].delay("1", "ok")
    ledger.wait_for("run")
    assert len(ledger.lines("end")) == 1
    command(app, "rate_limit", "w0@test", task_name="record", rate_limit=None)
    ledger.wait_for("end", 5)


@pytest.mark.usefixtures("with_results")
def test_calls_are_revoked(app, start_prefork, ledger, tmp_path):
    """A waiting one does not run; one that runs is not stored as revoked."""
    gated = app.tasks["gated"]
    start_prefork(lanes=1)
    running = gated.apply_async(("1",), ignore_result=False)
    ledger.wait_for("start")
    waiting = gated.apply_async(("1", "again"), ignore_result=False)
    command(app, "revoke", "w0@test", task_id=[running.id, waiting.id])
    (tmp_path / "gate").touch()
    assert running.get(timeout=30) is None
    eventually(lambda: waiting.state == "REVOKED")
    eventually(lambda: settled(gated))
    assert len(ledger.lines("start")) == 1


def stamped(task, *args, **stamps):
    signature = task.s(*args)
    signature.stamp(**stamps)
    return signature.delay()


@pytest.mark.usefixtures("with_results")
def test_what_is_asked_while_the_node_process_starts_is_obeyed(app, start_prefork, ledger, tmp_path):
    """Before a lane begins what has waited for it, also for a second process."""
    record = app.tasks["record"]
    node = start_prefork(PROJ_HOLD_NODE="1")
    for turn in range(2):
        ledger.wait_for("node process", turn + 1)
        calls = [
            record.apply_async((f"{name} {turn}",), ignore_result=False) for name in ("revoked", "terminated")
        ]
        stamped(record, f"stamped {turn}", customer=f"customer {turn}")
        app.tasks["outcome"].delay(f"last {turn}", "ok")
        command(app, "revoke", "w0@test", task_id=calls[0].id)
        command(app, "revoke", "w0@test", task_id=calls[1].id, terminate=True)
        headers = {"customer": [f"customer {turn}"]}
        command(app, "revoke_by_stamped_headers", "w0@test", headers=headers)
        command(app, "cancel_consumer", "w0@test", queue="gated")
        (tmp_path / "node process").touch()
        ledger.wait_for("run", turn + 1)
        eventually(lambda: settled(record))
        assert shares(app) == [10]
        (tmp_path / "node process").unlink()
        os.kill(command(app, "stats", "w0@test")[0]["lowkiq"]["pid"], signal.SIGKILL)
    assert ledger.lines("start") == []
    node.kill("SIGTERM")
    assert node.exit_status() == 0, node.logs()


@pytest.mark.full
@pytest.mark.usefixtures("with_results")
def test_the_next_node_process_knows_what_was_asked_of_the_first(app, start_prefork, ledger):
    record = app.tasks["record"]
    node = start_prefork()
    first = node_pid(app)
    command(app, "rate_limit", "w0@test", task_name="outcome", rate_limit="1/h")
    command(app, "cancel_consumer", "w0@test", queue="gated")
    later = record.apply_async(("revoked",), countdown=5, ignore_result=False)
    command(app, "revoke", "w0@test", task_id=later.id)
    command(app, "revoke_by_stamped_headers", "w0@test", headers={"customer": ["one"]})
    command(app, "enable_events", "w0@test")
    command(app, "pool_grow", "w0@test", n=1)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: node.logs().count("ordered queues are served by process") == 2)
    with Listener(app) as listener:
        eventually(lambda: shares(app) == [10])
        stamped(record, "stamped", customer="one")
        app.tasks["outcome"].delay("1", "ok")
        eventually(lambda: listener.of("task-succeeded"))
    eventually(lambda: record.ordered_queue.stats().length == 0)
    assert ledger.lines("start") == []
    app.tasks["outcome"].delay("2", "ok")
    record.delay("last")
    ledger.wait_for("end")
    assert len(ledger.lines("run")) == 1
    assert len(command(app, "lowkiq", "w0@test")[0]["lanes"]) == 2


@pytest.mark.full
def test_a_time_limit_is_set_at_run_time_and_stays(settings, start_prefork, ledger):
    app = in_processes.make_app(**settings)
    node = start_prefork(module="tests.worker.in_processes")
    (said,) = command(app, "time_limit", "w0@test", task_name="act", hard=0.5)
    assert said == {"ok": "time limits set successfully"}
    for turn in range(2):
        app.tasks["act"].delay(str(turn), "hold")
        ledger.wait_for("exhausted", turn + 1)
        os.kill(command(app, "stats", "w0@test")[0]["lowkiq"]["pid"], signal.SIGKILL)
        eventually(lambda: node.logs().count("ordered queues are served by process") == turn + 2)  # noqa: B023
    assert "TimeLimitExceeded(0.5" in ledger.lines("exhausted")[1]["error"]
    app.close()


def test_heartbeats_count_runs_of_the_node_process(app, start_prefork, ledger, tmp_path):
    with Listener(app, "worker-heartbeat") as listener:
        node = start_prefork("-E", "--heartbeat-interval=1")
        lanes = node_pid(app)

        def active():
            return [event["active"] for event in list(listener.events)][-1:]

        app.tasks["gated"].perform_async([{"id": n} for n in range(10)])
        ledger.wait_for("start", 2)
        eventually(lambda: active() == [2])
        os.kill(lanes, signal.SIGKILL)
        node.wait_for_log(f"the node process {lanes} has ended with status -9")
        ledger.wait_for("start", 4)
        (tmp_path / "gate").touch()
        eventually(lambda: active() == [0])


def module(directory, name, *lines):
    (directory / f"{name}.py").write_text("\n".join(lines))


LATE = (
    "from celery_lowkiq import ordered_task",
    "from tests.worker.proj import app, note",
    "@ordered_task(app=app, name='late', shards=2)",
    "def late(payloads_by_id):",
    "    note('late', ids=list(payloads_by_id))",
)


@pytest.mark.full
@pytest.mark.parametrize("waits", [False, True], ids=["serving", "starting"])
def test_a_late_task(app, settings, start_prefork, ledger, tmp_path, waits):
    """Registered while the node process serves, and while it starts. Its calls come by name."""
    settings["worker_pool_restarts"] = True
    module(tmp_path, "late_tasks", *LATE)
    hold = {"PROJ_HOLD_NODE": "1"} if waits else {}
    node = start_prefork(PYTHONPATH=tmp_path, **hold)
    ledger.wait_for("node process") if waits else node_pid(app)
    command(app, "pool_restart", "w0@test", modules=["late_tasks"])
    (tmp_path / "node process").touch()
    eventually(lambda: node.logs().count("ordered queues are served by process") == 2)
    app.send_task("late", ("1", "payload"))
    ledger.wait_for("late")
    os.kill(command(app, "stats", "w0@test")[0]["lowkiq"]["pid"], signal.SIGKILL)
    app.send_task("late", ("2", "payload"))
    ledger.wait_for("late", 2)
    assert [line["ids"] for line in ledger.lines("late")] == [["1"], ["2"]]
    assert "not served" not in node.logs()


@pytest.mark.full
def test_tasks_of_the_module_that_the_worker_was_given(app, settings, start_prefork, ledger, tmp_path):
    """That of the app does not import it."""
    module(tmp_path, "zz_entry", *LATE)
    node = start_prefork(module="zz_entry", PYTHONPATH=tmp_path)
    app.send_task("late", ("1", "payload"))
    ledger.wait_for("late")
    assert "not served" not in node.logs()
