"""Signals and deaths: nothing is lost, nothing runs twice at once, nothing hangs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict

import pytest

from tests.marks import first_often
from tests.waiting import eventually
from tests.worker import proj
from tests.worker.checks import overlaps, released, shares, suspects


@pytest.mark.parametrize("name, status", first_often([("SIGTERM", 0), ("SIGINT", 1)]))
def test_term_and_int_drain(app, start_worker, ledger, tmp_path, name, status):
    """The running batch is finished and settled, nothing new begins, the shards are given up."""
    gated = app.tasks["gated"]
    node = start_worker(lanes=1)
    gated.delay("runs")
    ledger.wait_for("start")
    gated.delay("waits")
    node.kill(name)
    node.wait_for_log("ordered queues stop: 1 batch is running")
    assert node.container.status == "running"
    (tmp_path / "gate").touch()
    assert node.exit_status() == status, node.logs()
    assert "Restart=always" not in node.logs()
    assert [line["id"] for line in ledger.lines("end")] == ["runs"]
    stats = gated.ordered_queue.stats()
    assert (stats.length, stats.busy, stats.processed) == (1, 0, 1)
    assert released(gated)


def test_a_draining_worker_still_answers(app, start_worker, ledger, tmp_path):
    node = start_worker()
    app.tasks["gated"].delay("1")
    ledger.wait_for("start")
    node.kill("SIGTERM")
    node.wait_for_log("ordered queues stop: 1 batch is running")
    assert eventually(lambda: app.control.ping(timeout=1.0)) == [{"w0@test": {"ok": "pong"}}]
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0


@pytest.mark.parametrize("times", first_often([1, 3]))
def test_quit_leaves_the_running_job_to_the_next_start(app, start_worker, ledger, tmp_path, times):
    """It is no crash: the job of a queue with max_crashes=2 survives three of them."""
    gated = app.tasks["gated"]
    gated.delay("1", "payload")
    for number in range(times):
        node = start_worker()
        ledger.wait_for("start", number + 1)
        node.kill("SIGQUIT")
        assert node.exit_status() == 0
        assert gated.ordered_queue.stats().busy == 1
        assert suspects(gated) == 0
    (tmp_path / "gate").touch()
    node = start_worker()
    ledger.wait_for("end")
    eventually(lambda: gated.ordered_queue.stats().processed == 1)
    assert gated.ordered_queue.stats().morgue_length == 0
    assert len(ledger.lines("start")) == times + 1


@pytest.mark.parametrize("what, status", first_often([("exit", 3), ("interrupt", 70)]))
def test_what_is_no_exception_ends_the_worker_after_the_other_lanes(
    app, start_worker, ledger, tmp_path, what, status
):
    gated, outcome = app.tasks["gated"], app.tasks["outcome"]
    node = start_worker()
    gated.delay("1")
    ledger.wait_for("start")
    outcome.delay("1", what)
    node.wait_for_log("the worker stops: lane-")
    assert node.container.status == "running"
    (tmp_path / "gate").touch()
    assert node.exit_status() == status, node.logs()
    assert gated.ordered_queue.stats().processed == 1
    assert released(gated)
    assert outcome.ordered_queue.stats().busy == 1


@pytest.mark.full
def test_l3_a_job_that_ends_every_worker_goes_to_the_morgue(app, start_worker, ledger):
    outcome = app.tasks["outcome"]
    outcome.delay("1", "exit")
    deaths = 1 + outcome.max_crashes  # the first one could have been anybody's
    for number in range(deaths):
        node = start_worker()
        ledger.wait_for("run", number + 1)
        assert node.exit_status() == 3
    start_worker()
    eventually(lambda: outcome.ordered_queue.stats().morgue_length == 1)
    assert outcome.ordered_queue.morgue().items[0].error.startswith("poison pill")
    assert len(ledger.lines("run")) == deaths


def test_two_workers_share_the_shards_and_one_takes_over(app, start_worker, ledger, tmp_path):
    """The second gets its share without a break; a batch that runs meanwhile is finished first."""
    gated, record = app.tasks["gated"], app.tasks["record"]
    first = start_worker()
    eventually(lambda: shares(app) == [14])
    gated.perform_async([{"id": f"job-{n}"} for n in range(20)])
    ledger.wait_for("start", 4)
    second = start_worker()
    eventually(lambda: len(shares(app)) == 2)
    (tmp_path / "gate").touch()
    eventually(lambda: shares(app) == [7, 7])
    record.perform_async([{"id": n} for n in range(200)])
    eventually(lambda: record.ordered_queue.stats().processed == 200)
    assert {line["pid"] for line in ledger.lines("end")} == {n.container.process.pid for n in (first, second)}
    first.kill("SIGKILL")
    eventually(lambda: shares(app) == [14])
    record.perform_async([{"id": f"after-{n}"} for n in range(20)])
    eventually(lambda: record.ordered_queue.stats().processed == 220)
    assert gated.ordered_queue.stats().processed == 20
    assert overlaps(ledger.lines()) == []


def test_a_worker_that_is_stopped_hands_its_shards_over_at_once(app, settings, start_worker, ledger):
    lease = settings["lowkiq_lease_seconds"] = app.conf.lowkiq_lease_seconds = 10
    node = start_worker()
    eventually(lambda: shares(app) == [14])
    start_worker()
    eventually(lambda: shares(app) == [7, 7], 60)
    began = time.monotonic()
    node.kill("SIGTERM")
    node.exit_status()
    eventually(lambda: shares(app) == [14])
    assert time.monotonic() - began < lease


@pytest.mark.full
def test_sigkill_at_random_moments_loses_nothing(app, start_worker, ledger):
    """5,000 jobs of 500 ids; every payload is processed, in score order, never two runs of an id at once."""
    ids, per_id = 500, 10
    record = app.tasks["record"]

    def all_done():
        stats = record.ordered_queue.stats()
        return stats.length == stats.busy == 0

    for step in range(per_id):
        record.perform_async([{"id": n, "payload": step, "score": step} for n in range(ids)])
        if step == 0:
            node = start_worker(PROJ_WORK="0.01", lanes=4)
    chance, interrupted = random.Random(5), 0
    for _ in range(6):
        goal = len(ledger.lines("end")) + chance.randint(10, 60)
        # On a busy machine all may be done before the next kill comes.
        eventually(lambda goal=goal: len(ledger.lines("end")) >= goal or all_done(), 60)
        node.kill("SIGKILL")
        node.exit_status()
        interrupted += not all_done()
        node = start_worker(PROJ_WORK="0.01", lanes=4)
    eventually(all_done, 60)
    assert interrupted
    lines = ledger.lines()
    processed = defaultdict(list)
    for line in lines:
        if line["event"] == "end":
            processed[line["id"]].append(line["payloads"])
    for n in range(ids):
        runs = processed[str(n)]
        assert all(run == sorted(run) for run in runs)
        assert {payload for run in runs for payload in run} == set(range(per_id)), f"id {n}: {runs}"
        assert runs[-1][-1] == per_id - 1
    assert overlaps(lines) == []
    assert record.ordered_queue.stats().morgue_length == 0


def test_the_overlap_checker_sees_overlaps():
    def line(event, pid):
        return {"event": event, "id": "1", "pid": pid}

    assert overlaps([line("start", 1), line("end", 1), line("start", 1), line("end", 1)]) == []
    assert overlaps([line("start", 1), line("start", 2), line("end", 2)]) == []
    assert overlaps([line("start", 1), line("start", 1), line("end", 1)]) == ["1"]
    assert overlaps([line("start", 1), line("start", 2), line("end", 1)]) == ["1"]


@pytest.mark.parametrize("name", first_often(["SIGUSR1", "SIGTTIN"]))
def test_a_trace_says_which_lane_works_on_what(app, start_worker, ledger, tmp_path, name):
    """P4: TTIN, by which a process is stopped where nothing handles it, writes the same trace as USR1."""
    node = start_worker()
    app.tasks["gated"].delay("1")
    (start,) = ledger.wait_for("start")
    lane, _, shard = start["thread"].partition(" ")
    assert lane.startswith("lane-")
    assert shard.startswith("gated/")
    os.kill(node.container.process.pid, getattr(signal, name))
    node.wait_for_log(f"{lane} {shard}")
    node.wait_for_log("wait_for_gate")
    (tmp_path / "gate").touch()
    ledger.wait_for("end")
    node.kill("SIGTERM")
    assert node.exit_status() == 0


@pytest.mark.full
def test_other_pools_write_the_trace_too(app, start_worker, ledger):
    """P4"""
    node = start_worker(pool="solo", lanes=1)
    os.kill(node.container.process.pid, signal.SIGTTIN)
    node.wait_for_log("LOCAL VARIABLES")
    app.tasks["plain"].delay(1)
    ledger.wait_for("plain")


class TestOtherPools:
    @pytest.mark.full
    def test_they_start_as_before_warn_once_and_serve_no_ordered_queue(self, app, start_worker, ledger):
        app.tasks["record"].delay("1")
        node = start_worker(pool="solo", lanes=1)
        app.tasks["plain"].delay(1)
        ledger.wait_for("plain")
        assert node.logs().count("are not served: ordered queues need the pool threads or prefork") == 1
        assert not ledger.lines("start")
        assert "(ordered queues need the pool threads or prefork: " in node.logs().partition("[tasks]")[0]
        node.kill("SIGTERM")
        assert node.exit_status() == 0
        assert app.tasks["record"].ordered_queue.stats().length == 1

    def test_they_are_refused_an_ordered_queue_by_name(self, app, start_worker):
        node = start_worker("-Q", "celery,record", pool="solo", lanes=1, wait=False)
        assert node.exit_status() != 0
        assert (
            "-Q names the ordered queues record: ordered queues need the pool threads or prefork"
            in node.logs()
        )


@pytest.fixture
def elsewhere(settings, tmp_path):
    """A broker that is no Redis, and no ``lowkiq_url``."""
    folder = str(tmp_path / "broker")
    (tmp_path / "broker").mkdir()
    options = {"data_folder_in": folder, "data_folder_out": folder, "control_folder": folder}
    settings.update(broker_url="filesystem://", broker_transport_options=options)


@pytest.mark.one_server
class TestNoRedis:
    """F7: a worker with a thread pool died at its start, and its plain tasks with it."""

    @pytest.mark.full
    def test_plain_tasks_are_served(self, elsewhere, app, start_worker, ledger):
        node = start_worker("--without-heartbeat", lanes=1)
        assert node.logs().count("are not served: ordered tasks need Redis, but broker_url is a") == 1
        assert "ERROR" in next(line for line in node.logs().splitlines() if "are not served" in line)
        # The banner listed them as served.
        assert "(ordered tasks need Redis, but" in node.logs().partition("[tasks]")[0]
        app.tasks["plain"].delay(1)
        ledger.wait_for("plain")
        app.send_task("record", ("1",))
        node.wait_for_log("messages for record wait in the worker")
        node.kill("SIGTERM")
        assert node.exit_status() == 0

    def test_an_ordered_queue_by_name_is_refused(self, elsewhere, app, start_worker):
        node = start_worker("-Q", "celery,record", lanes=1, wait=False)
        assert node.exit_status() != 0
        assert "-Q names the ordered queues record: ordered tasks need Redis" in node.logs()


def test_bad_settings_end_a_worker_with_their_name(settings, start_worker, app):
    settings["lowkiq_pol_interval"] = 3
    node = start_worker(wait=False)
    assert node.exit_status() != 0
    assert "expected the name of a setting. Did you mean lowkiq_poll_interval?" in node.logs()


def test_the_apps_of_two_tests_do_not_share_tasks():
    assert proj.make_app().tasks["record"] is not proj.make_app().tasks["record"]
