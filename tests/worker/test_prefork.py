"""Celery's default pool: the lanes are in a node process beside the processes that Celery forks."""

from __future__ import annotations

import multiprocessing
import os
import signal

import psutil
import pytest

from celery_lowkiq.integration.processes.app_reference import locate
from celery_lowkiq.worker import forks
from tests.marks import first_often
from tests.waiting import eventually
from tests.worker import in_processes, proj
from tests.worker.checks import command, overlaps, released, shares, suspects
from tests.worker.test_deaths import settled
from tests.worker.test_watching import Listener


def node_pid(app):
    """The process with the lanes, once they have all shards."""
    pid = eventually(lambda: command(app, "stats", "w0@test")[0]["lowkiq"].get("pid"))
    eventually(lambda: shares(app) == [14])
    return pid


def family(node):
    """The worker and all its descendants."""
    worker = psutil.Process(node.container.process.pid)
    return [worker, *worker.children(recursive=True)]


def alive(processes):
    """Those that have not ended; what reaps them is not the tests' to say."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_ordered_calls_run_in_order_beside_plain_tasks(app, start_prefork, ledger):
    record, plain = app.tasks["record"], app.tasks["plain"]
    for number in range(20):
        record.perform_async([{"id": n, "payload": number, "score": number} for n in range(10)])
        plain.delay(number)
    node = start_prefork()
    ledger.wait_for("plain", 20)
    eventually(lambda: settled(record))
    lines = ledger.lines("end")
    for job_id in map(str, range(10)):
        ran = [number for line in lines if line["id"] == job_id for number in line["payloads"]]
        assert ran == list(range(20))
    assert overlaps(ledger.lines()) == []
    (lanes,) = {line["pid"] for line in lines}
    title = " ".join(psutil.Process(lanes).cmdline())
    assert "lowkiq-node" in title
    assert "w0@test" in title
    children = {line["pid"] for line in ledger.lines("plain")}
    assert lanes not in children
    assert node.container.process.pid not in {lanes, *children}
    assert "[ordered queues]" in node.logs()


@pytest.mark.full
def test_lanes_of_the_node_process_have_child_processes(settings, start_prefork, ledger):
    settings["result_backend"] = settings["broker_url"]
    app = in_processes.make_app(**settings)
    node = start_prefork(module="tests.worker.in_processes")
    assert app.tasks["act"].delay("1", "good").get(timeout=30) == "good done"
    with pytest.raises(Exception, match="poison pill"):
        app.tasks["act"].delay("2", "kill").get(timeout=60)
    assert app.tasks["in loop"].delay("3", "good").get(timeout=30) == "good done"
    (worker, *others) = family(node)
    runs = {line["pid"] for line in ledger.lines("start")}
    assert runs.isdisjoint(child.pid for child in worker.children())
    node.kill("SIGKILL")
    eventually(lambda: not alive([worker, *others]))
    app.close()


@pytest.mark.full
def test_only_the_node_process_has_threads(app, start_prefork, ledger):
    """Also when a message has the worker push, and commands act on a queue."""
    node = start_prefork("--max-tasks-per-child=1")
    lanes = node_pid(app)
    app.send_task("record", ("by message",))
    ledger.wait_for("end")
    assert command(app, "lowkiq_run_now", "w0@test", queue="record") == [{"ok": 0}]
    for number in range(4):
        app.tasks["plain"].delay(number)
    assert len({line["pid"] for line in ledger.wait_for("plain", 4)}) == 4
    threads = {process.pid: process.num_threads() for process in family(node)}
    assert threads.pop(lanes) > 2
    assert set(threads.values()) == {1}


def test_a_forked_process_does_not_keep_the_connection():
    """Else the node process would not end with its worker."""
    ours, theirs = multiprocessing.Pipe()
    forks.close_in_forks(ours)
    gate = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=gate.wait)
    child.start()
    ours.close()
    with pytest.raises(EOFError):
        theirs.recv()
    gate.set()
    child.join()


@pytest.mark.parametrize("name, status", first_often([("SIGTERM", 0), ("SIGINT", 1)]))
def test_term_and_int_drain(app, start_prefork, ledger, tmp_path, name, status):
    gated = app.tasks["gated"]
    node = start_prefork(lanes=1)
    gated.delay("runs")
    ledger.wait_for("start")
    gated.delay("waits")
    node.kill(name)
    node.wait_for_log("ordered queues stop: 1 batch is running")
    assert eventually(lambda: app.control.ping(timeout=1.0)) == [{"w0@test": {"ok": "pong"}}]
    (tmp_path / "gate").touch()
    assert node.exit_status() == status, node.logs()
    assert [line["id"] for line in ledger.lines("end")] == ["runs"]
    stats = gated.ordered_queue.stats()
    assert (stats.length, stats.busy, stats.processed) == (1, 0, 1)
    assert released(gated)
    assert "has ended with status" not in node.logs()


@pytest.mark.full
def test_quit_leaves_the_running_job_to_the_next_start(app, start_prefork, ledger, tmp_path):
    gated = app.tasks["gated"]
    gated.delay("1", "payload")
    node = start_prefork()
    ledger.wait_for("start")
    processes = family(node)
    node.kill("SIGQUIT")
    assert node.exit_status() == 0
    assert gated.ordered_queue.stats().busy == 1
    assert suspects(gated) == 0
    eventually(lambda: not alive(processes), 5)
    (tmp_path / "gate").touch()
    start_prefork()
    ledger.wait_for("end")
    eventually(lambda: gated.ordered_queue.stats().processed == 1)


@pytest.mark.full
def test_quit_ends_a_drain(app, start_prefork, ledger):
    app.tasks["gated"].delay("1")
    node = start_prefork()
    ledger.wait_for("start")
    node.kill("SIGTERM")
    node.wait_for_log("ordered queues stop: 1 batch is running")
    node.kill("SIGQUIT")
    node.exit_status()
    assert app.tasks["gated"].ordered_queue.stats().busy == 1


@pytest.mark.full
def test_a_node_process_that_dies_in_a_drain_is_named(app, start_prefork, ledger):
    node = start_prefork()
    lanes = node_pid(app)
    app.tasks["gated"].delay("1")
    ledger.wait_for("start")
    node.kill("SIGTERM")
    node.wait_for_log("ordered queues stop: 1 batch is running")
    os.kill(lanes, signal.SIGKILL)
    assert node.exit_status() == 0
    assert f"the node process {lanes} has ended with status -9" in node.logs()
    assert node.logs().count("ordered queues are served by process") == 1


@pytest.mark.parametrize("what, status", first_often([("exit", 3), ("interrupt", 70)]))
def test_a_lanes_crash_ends_the_worker_with_its_status(app, start_prefork, ledger, tmp_path, what, status):
    """The other lanes finish first."""
    node = start_prefork()
    app.tasks["gated"].delay("1")
    ledger.wait_for("start")
    app.tasks["outcome"].delay("1", what)
    node.wait_for_log("the worker stops: lane-")
    node.wait_for_log("ordered queues stop: ")
    (tmp_path / "gate").touch()
    assert node.exit_status() == status, node.logs()
    assert len(ledger.lines("end")) == 1


def test_a_node_process_that_dies_is_replaced(app, start_prefork, ledger, tmp_path):
    """It stays quiet when an operator wanted it, and its limits stay."""
    gated, record = app.tasks["gated"], app.tasks["record"]
    node = start_prefork()
    first = node_pid(app)
    gated.delay("1")
    ledger.wait_for("start")
    os.kill(first, signal.SIGKILL)
    ledger.wait_for("start", 2)
    (tmp_path / "gate").touch()
    eventually(lambda: gated.ordered_queue.stats().processed == 1)
    assert f"the node process {first} has ended with status -9" in node.logs()
    second = node_pid(app)
    assert second != first
    command(app, "lowkiq_quiet", "w0@test")
    eventually(lambda: shares(app) == [])
    os.kill(second, signal.SIGKILL)
    eventually(lambda: node.logs().count("ordered queues are served by process") == 3)
    assert eventually(lambda: command(app, "lowkiq", "w0@test")[0].get("lanes"))
    assert command(app, "lowkiq", "w0@test")[0]["quiet"]
    record.delay("1")
    command(app, "lowkiq_unquiet", "w0@test")
    ledger.wait_for("end", 2)
    node.kill("SIGTERM")
    assert node.exit_status() == 0


@pytest.mark.full
def test_a_payload_that_kills_is_buried_and_the_worker_lives(app, start_prefork, ledger):
    batches = app.tasks["batches"]
    payloads = {"killer": "kill", "mate-1": "good", "mate-2": "good"}
    batches.perform_async([{"id": name, "payload": what} for name, what in payloads.items()])
    node = start_prefork()
    eventually(lambda: settled(batches), 180)
    (buried,) = batches.ordered_queue.morgue().items
    assert buried.error.startswith("poison pill")
    survivors = [job_id for line in ledger.lines("survived") for job_id in line["ids"]]
    assert sorted(survivors) == ["mate-1", "mate-2"]
    assert node.logs().count("has ended with status -9") == 1 + batches.max_crashes


def test_no_process_outlives_a_killed_worker(app, start_prefork, ledger):
    """Its running batch is the next owner's and no crash; idle shards are free at once."""
    gated = app.tasks["gated"]
    node = start_prefork()
    node_pid(app)
    gated.delay("1")
    ledger.wait_for("start")
    worker, *others = family(node)
    worker.kill()
    eventually(lambda: not alive(others), 1)
    assert gated.ordered_queue.stats().busy == 1
    assert suspects(gated) == 0
    assert shares(app) == []
    assert "the worker has died" in node.logs()


def test_remote_control(app, start_prefork, ledger, tmp_path):
    gated, record = app.tasks["gated"], app.tasks["record"]
    start_prefork("-E")
    lanes = node_pid(app)
    gated.delay("1")
    ledger.wait_for("start")
    (answer,) = command(app, "active", "w0@test")
    (run,) = answer
    assert (run["name"], run["worker_pid"], run["hostname"]) == ("gated", lanes, "w0@test")
    (found,) = command(app, "query_task", "w0@test", ids=[run["id"]])
    assert found[run["id"]][0] == "active"
    (answer,) = command(app, "lowkiq", "w0@test")
    assert [lane["running"]["ids"] for lane in answer["lanes"] if lane["running"]] == [["1"]]
    assert {queue["name"] for queue in answer["overview"]["queues"]} >= {"record", "gated"}
    eventually(lambda: command(app, "stats", "w0@test")[0]["total"].get("gated") == 1)
    assert command(app, "cancel_consumer", "w0@test", queue="record") == [
        {"ok": "no longer consuming from record"}
    ]
    eventually(lambda: shares(app) == [6])
    record.delay("1")
    assert command(app, "lowkiq_pause", "w0@test", queue="record", ids=["1"]) == [{"ok": 1}]
    assert command(app, "lowkiq_resume", "w0@test", queue="record", ids=["1"]) == [{"ok": 1}]
    command(app, "add_consumer", "w0@test", queue="record")
    ledger.wait_for("end")
    assert {queue["name"] for queue in command(app, "active_queues", "w0@test")[0]} >= {"celery", "record"}
    assert command(app, "pool_grow", "w0@test", n=1) == [{"ok": "pool will grow"}]
    (tmp_path / "gate").touch()
    ledger.wait_for("end", 2)


@pytest.mark.full
def test_events_come_from_the_worker(app, start_prefork, ledger):
    """Only while they are switched on, as by Flower."""
    record = app.tasks["record"]
    with Listener(app) as listener:
        start_prefork()
        node_pid(app)
        record.delay("1")
        ledger.wait_for("end")
        command(app, "enable_events", "w0@test")
        record.delay("2")
        eventually(lambda: listener.of("task-succeeded"))
        command(app, "disable_events", "w0@test")
        record.delay("3")
        ledger.wait_for("end", 3)
        command(app, "enable_events", "w0@test")
        record.delay("4")
        eventually(lambda: len(listener.of("task-succeeded")) == 2)
    kinds = ["task-received", "task-started", "task-succeeded"]
    assert [event["type"] for event in listener.events] == 2 * kinds
    assert {event["hostname"] for event in listener.events} == {"w0@test"}
    clocks = [event["clock"] for event in listener.events]
    assert clocks == sorted(clocks)


@pytest.mark.full
@pytest.mark.parametrize("name", first_often(["SIGUSR1", "SIGTTIN"]))
def test_a_trace_says_which_lane_works_on_what(app, start_prefork, ledger, tmp_path, name):
    node = start_prefork()
    app.tasks["gated"].delay("1")
    (start,) = ledger.wait_for("start")
    node.kill(name)
    node.wait_for_log(start["thread"])
    node.wait_for_log("wait_for_gate")
    node.kill("SIGTERM")
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0


@pytest.mark.full
def test_the_log_is_one_file_in_one_format(app, start_prefork, ledger, tmp_path):
    log = tmp_path / "worker.log"
    node = start_prefork("-f", str(log), wait=False)
    app.tasks["record"].delay("1")
    ledger.wait_for("end")
    (line,) = eventually(lambda: [each for each in log.read_text().splitlines() if "Task record[" in each])
    assert ": INFO/lowkiq-node] Task record[" in line
    assert "queue=record" in line
    node.kill("SIGTERM")
    assert node.exit_status() == 0
    assert "Task record[" not in node.logs()


def test_a_start_that_fails_ends_the_worker(app, settings, start_prefork):
    """What only the node process finds wrong."""
    settings["lowkiq_scheduler"] = "tests.worker.no_module:scheduler"
    node = start_prefork(wait=False)
    assert node.exit_status() == 1
    assert "no_module" in node.logs()


@pytest.mark.full
def test_a_restart_of_the_pool_restarts_the_node_process(app, settings, start_prefork, ledger, tmp_path):
    """It imports all modules anew. A running batch ends first."""
    settings["worker_pool_restarts"] = True
    node = start_prefork()
    first = node_pid(app)
    app.tasks["gated"].delay("1")
    ledger.wait_for("start")
    command(app, "pool_restart", "w0@test")
    node.wait_for_log("ordered queues stop: 1 batch is running")
    (tmp_path / "gate").touch()
    ledger.wait_for("end")
    node.wait_for_log(f"the node process {first} has ended with status 0")
    assert node_pid(app) != first


def test_an_app_that_no_module_has_is_not_found():
    assert locate(proj.make_app()) is None
    assert locate(proj.app) == "tests.worker.proj:app"
