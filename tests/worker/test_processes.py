"""``run_in="process"``: each way in which a run ends, and the process of a lane from its start to its end."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from functools import partial

import psutil
import pytest
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded

from celery_lowkiq.embedded import EmbeddedServer
from tests.marks import first_often
from tests.outages import away
from tests.waiting import eventually
from tests.worker.checks import command, is_alive, suspects

#: Seconds that a machine that has other things to do may take longer.
BUSY_MACHINE = 3.0
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="run_in='process' forks")


@pytest.fixture
def app(process_app):
    return process_app


@pytest.fixture
def start(start_worker):
    return partial(start_worker, module="tests.worker.in_processes", lanes=2)


def pid_of(node):
    return node.container.process.pid


def settled(task):
    stats = task.ordered_queue.stats()
    return stats.length == stats.busy == 0


def test_a_run_has_a_process_of_its_lane_and_ends_as_in_a_thread(app, start, ledger):
    node = start()
    good, bad = app.tasks["act"].delay("1", "good"), app.tasks["act"].delay("2", "fail")
    assert good.get(timeout=30) == "good done"
    with pytest.raises(ValueError, match="as asked"):
        bad.get(timeout=30)
    first, *_ = ledger.lines("start")
    assert (first["task_id"], first["known"]) == (good.id, True)
    (exhausted,) = ledger.wait_for("exhausted")
    assert (exhausted["ids"], "ValueError: as asked" in exhausted["error"]) == (["2"], True)
    others = {line["pid"] for line in ledger.lines()}
    assert pid_of(node) not in others
    for line in ledger.lines("process starts"):
        assert line["group"] == line["pid"] in others
    app.tasks["in thread"].delay("3").get(timeout=30)
    assert ledger.lines("end")[-1]["pid"] == pid_of(node)
    # So do the processes of a run.
    assert len({line["method"] for line in ledger.lines("start")}) == 1
    node.kill("SIGTERM")
    assert node.exit_status() == 0
    assert len(ledger.wait_for("process ends")) == len(ledger.lines("process starts"))


@pytest.mark.parametrize("how", first_often(["segfault", "kill", "exit", "leave"]))
def test_a_process_that_dies_is_a_crash_of_its_batch_only(app, start, ledger, how):
    node, act = start(), app.tasks["act"]
    killer = act.delay("killer", how)
    with pytest.raises(Exception, match="poison pill"):
        killer.get(timeout=60)
    assert len([line for line in ledger.lines("start") if line["id"] == "killer"]) == 1 + act.max_crashes
    assert [act.delay(str(n), "good").get(timeout=30) for n in range(9)] == ["good done"] * 9
    assert node.container.status == "running"
    (buried,) = act.ordered_queue.morgue().items
    said = f"it crashed its worker or process {act.max_crashes} times (max_crashes)"
    assert (buried.id, buried.error) == ("killer", f"poison pill: run alone as a suspect, {said}")
    assert suspects(act) == 0


def test_the_soft_limit_raises_in_the_function_and_the_hard_one_kills(app, start, ledger):
    start()
    limited = app.tasks["limited"]
    result = limited.delay("1", "softly")
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(timeout=60)
    assert len(ledger.lines("soft limit")) == 2
    hard = limited.delay("2", "stubborn")
    with pytest.raises(TimeLimitExceeded):
        hard.get(timeout=60)
    errors = [line["error"] for line in ledger.lines("ignored")]
    assert errors == ["SoftTimeLimitExceeded()"] * 2
    assert [line["ids"] for line in ledger.wait_for("exhausted", 2)] == [["1"], ["2"]]
    assert [job.id for job in limited.ordered_queue.morgue().items] == ["1", "2"]


def test_a_coroutine_runs_in_the_process_and_its_limit_cancels_it(app, start, ledger):
    node = start()
    in_loop = app.tasks["in loop"]
    good, slow = in_loop.delay("1", "good"), in_loop.delay("2", "sleep")
    assert good.get(timeout=30) == "good done"
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        slow.get(timeout=60)
    assert pid_of(node) not in {line["pid"] for line in ledger.lines("start")}
    third = in_loop.delay("3", "good")
    assert third.get(timeout=30) == "good done"
    assert [line["id"] for line in ledger.lines("end")] == ["1", "3"]
    node.kill("SIGTERM")
    assert node.exit_status() == 0


@pytest.mark.parametrize("name", ["each async", "each"])
def test_the_soft_limit_of_a_batch_fails_only_the_ids_that_are_not_done(app, start, ledger, name):
    start(lanes=1)
    task, seconds = app.tasks[name], {"1": 0.0, "2": 0.0, "slow": 30.0, "last": 30.0}
    jobs = [{"id": job_id, "payload": each} for job_id, each in seconds.items()]
    results = dict(zip(seconds, task.perform_async(jobs, results=True), strict=True))
    for job_id in ("slow", "last"):
        with pytest.raises(SoftTimeLimitExceeded):
            results[job_id].get(timeout=20)
    assert [results[job_id].get(timeout=20) for job_id in "12"] == [None, None]
    begun = sorted(line["id"] for line in ledger.lines("start"))
    assert begun == (["1", "2", "last", "slow"] if name == "each async" else ["1", "2", "last"])


def test_a_kill_ends_all_that_the_run_has_started(app, start, ledger):
    """Also a function that keeps the interpreter's lock; the next run begins when the process is gone."""
    start()
    hard = app.tasks["hard"]
    hard.delay("1", "start another")
    (other,) = ledger.wait_for("other")
    hard.delay("2", "hold")
    hard.delay("3", "good").get(timeout=60)
    assert not is_alive(other["other"])
    eventually(lambda: settled(hard), 60)
    assert not any(is_alive(line["pid"]) for line in ledger.lines("start") if line["id"] != "3")


@pytest.mark.parametrize("what", first_often(["clean up", "stubborn", "start another"]))
def test_a_run_is_terminated(app, start, ledger, what):
    node, act = start(), app.tasks["act"]
    result = act.delay("1", what)
    (begun,) = ledger.wait_for("start")
    ((active,),) = command(app, "active", "w0@test")
    assert (active["id"], active["worker_pid"], active["name"]) == (result.id, begun["pid"], "act")
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError, match="terminated"):
        result.get(timeout=30)
    assert not is_alive(begun["pid"])
    assert bool(ledger.lines("cleaned up")) == (what == "clean up")
    assert act.delay("1", "good").get(timeout=30) == "good done"
    assert suspects(act) == 0
    assert node.container.status == "running"


@pytest.mark.parametrize("what", first_often(["hold", "start another", "gate"]))
def test_a_worker_that_dies_leaves_no_process(app, start, ledger, what):
    node = start()
    for number in range(6):
        app.tasks["act"].delay(str(number), what)
    ledger.wait_for("start", 2)
    servers = [child.pid for child in psutil.Process(pid_of(node)).children()]
    pids = [line["pid"] for line in ledger.lines("start")] + [line["other"] for line in ledger.lines("other")]
    node.kill("SIGKILL")
    died_at = time.monotonic()
    eventually(lambda: not any(map(is_alive, pids)), 20)
    lived = time.monotonic() - died_at
    print(f"the last child ended {lived:.2f} s after its worker")
    assert lived < 1.0 + BUSY_MACHINE
    eventually(lambda: not any(map(is_alive, servers)), 20)


def test_a_process_is_replaced_after_as_many_runs_as_celery_is_told(app, settings, start, ledger):
    settings["worker_max_tasks_per_child"] = 2
    start(lanes=1)
    assert [app.tasks["act"].delay(str(n), "good").get(timeout=30) for n in range(6)] == ["good done"] * 6
    pids = [line["pid"] for line in ledger.lines("end")]
    assert (len(set(pids)), pids[::2]) == (3, pids[1::2])
    assert len(ledger.wait_for("process ends", 2)) >= 2


@pytest.mark.full
def test_a_process_is_replaced_when_it_has_grown(app, settings, start, ledger):
    settings["worker_max_memory_per_child"] = 150_000
    start(lanes=1)
    assert [app.tasks["act"].delay(str(n), "grow").get(timeout=30) for n in range(4)] == ["grow done"] * 4
    assert 1 < len({line["pid"] for line in ledger.lines("end")}) <= 4


@pytest.mark.full
def test_an_idle_process_ends_and_another_one_comes(app, start, ledger):
    start(lanes=1, PROJ_IDLE="0.2")
    act = app.tasks["act"]
    for number in range(3):
        act.delay("1", "good").get(timeout=30)
        ledger.wait_for("process ends", number + 1)
    assert len({line["pid"] for line in ledger.lines("end")}) == 3


def test_a_process_that_dies_idle_is_nobodys_crash(app, start, ledger):
    start(lanes=1)
    act = app.tasks["act"]
    for number in range(3):
        act.delay("1", "good").get(timeout=30)
        eventually(lambda: settled(act))
        os.kill(ledger.lines("end")[number]["pid"], signal.SIGKILL)
    act.delay("1", "good").get(timeout=30)
    eventually(lambda: settled(act))
    assert suspects(act) == 0


BROKEN = """
from celery_lowkiq.integration.processes.child_runs import ProcessRun
from tests.worker.in_processes import HERE, app

def limits(run):
    broken = HERE / "broken"
    if run.batch.jobs[0].id == "first" and not broken.exists():
        broken.touch()
        raise TypeError("as asked")
    return None, None

ProcessRun.limits = property(limits)
"""


def test_a_run_that_its_lane_cannot_wait_for_settles_no_other_one(app, start, ledger, tmp_path):
    """Its late outcome was taken for that of the next run: a job that failed was lost."""
    (tmp_path / "entry.py").write_text(BROKEN)
    limited, what = app.tasks["limited"], {"first": "nap", "bad": "fail", "next": "nap", "last": "nap"}
    results = {job_id: limited.delay(job_id, action) for job_id, action in what.items()}
    start(module="entry", PYTHONPATH=tmp_path, lanes=1)
    with pytest.raises(ValueError, match="as asked"):
        results.pop("bad").get(timeout=30)
    assert {result.get(timeout=30) for result in results.values()} == {"nap done"}
    begun = Counter(line["id"] for line in ledger.lines("start"))
    assert begun.pop("first", 0) in (1, 2), "the first process was killed before it began, or after"
    assert begun == {"bad": 2, "next": 1, "last": 1}
    # A result is written before its run is settled.
    dead = eventually(lambda: limited.ordered_queue.morgue().items)
    assert [job.id for job in dead] == ["bad"]
    assert suspects(limited) == 0


def test_a_process_that_a_run_starts_ends_by_terminate(app, start, ledger):
    """From another thread of a child, and by the fork server of a worker whose children use it."""
    start(lanes=1)
    for task, what in (("act", "terminate a fork"), ("in thread", "terminate one of a server")):
        app.tasks[task].delay("1", what).get(timeout=60)
    assert [line["status"] for line in ledger.lines("terminated")] == [-signal.SIGTERM] * 2


DIES = """
import os, signal
from tests.worker.in_processes import HERE, app

server, died = os.getpid(), HERE / "died"

def die():
    if os.getppid() == server and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGTERM)
        raise SystemExit

os.register_at_fork(after_in_child=die)
"""


@pytest.mark.full
def test_a_process_that_a_stop_signal_ends_while_it_starts_is_nobodys_crash(app, start, ledger, tmp_path):
    (tmp_path / "entry.py").write_text(DIES)
    node, act = start(module="entry", PYTHONPATH=tmp_path, lanes=1), app.tasks["act"]
    assert act.delay("1", "good").get(timeout=60) == "good done"
    assert (tmp_path / "died").exists()
    assert "lane-0 has no child process: SIGTERM" in node.logs()
    assert (len(ledger.lines("start")), suspects(act)) == (1, 0)


def test_a_function_learns_that_its_lease_is_lost(settings, app, start, ledger):
    with EmbeddedServer(port=0) as store:
        settings["lowkiq_url"] = app.conf.lowkiq_url = store.url
        start()
        app.tasks["act"].delay("1", "lost")
        ledger.wait_for("start")
        with away(store):
            (lost,) = ledger.wait_for("lost")
        assert lost["was_set"]


@pytest.mark.full
def test_events_of_a_run_come_from_the_worker(app, start, ledger):
    start("-E")
    seen = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        capture = receiver.itercapture(limit=None, timeout=30, wakeup=True)
        next(capture)
        result = app.tasks["act"].delay("1", "good")
        while not any(event["type"] == "task-succeeded" for event in seen):
            next(capture)
    kinds = [event["type"] for event in seen if event.get("uuid") == result.id]
    assert kinds == ["task-received", "task-started", "task-succeeded"]
    assert {event["hostname"] for event in seen} == {"w0@test"}


@pytest.mark.full
def test_a_call_has_time_limits_of_its_own(app, start, ledger):
    """In place of those of its task: 2.5 and 1 s."""
    start()
    limited = app.tasks["limited"]
    hard = limited.apply_async(("1", "gate"), time_limit=0.3)
    with pytest.raises(TimeLimitExceeded) as raised:
        hard.get(timeout=90)
    assert raised.value.args == (0.3,)
    # Without any.
    soft = app.tasks["act"].apply_async(("2", "softly"), soft_time_limit=0.3)
    with pytest.raises(SoftTimeLimitExceeded):
        soft.get(timeout=90)


@pytest.mark.full
def test_limits_are_set_at_run_time(app, start, ledger):
    start()
    reply = command(app, "time_limit", "w0@test", task_name="act", hard=0.5)
    assert reply == [{"ok": "time limits set successfully"}]
    result = app.tasks["act"].delay("1", "gate")
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=90)
    (refused,) = command(app, "time_limit", "w0@test", task_name="in thread", hard=0.5)
    assert refused["error"].startswith("time_limit: its lane runs it in a thread")


def test_strict_exclusion_is_refused(settings, start):
    settings["lowkiq_exclusion"] = "strict"
    node = start(wait=False)
    assert node.exit_status(60) != 0
    assert "lowkiq_exclusion='strict' is invalid: expected 'cooperative', because" in node.logs()


def test_a_worker_that_stops_waits_for_its_children(app, start, ledger, tmp_path):
    node = start()
    app.tasks["act"].delay("1", "gate")
    (begun,) = ledger.wait_for("start")
    node.kill("SIGTERM")
    eventually(lambda: "ordered queues stop: 1 batch is running" in node.logs())
    (tmp_path / "gate").touch()
    assert node.exit_status() == 0
    assert len(ledger.lines("end")) == 1
    assert not is_alive(begun["pid"])


@pytest.mark.full
def test_a_cold_shutdown_leaves_the_batch_to_the_next_worker_and_blames_nothing(app, start, ledger, tmp_path):
    node, act = start(), app.tasks["act"]
    result = act.delay("1", "gate")
    (begun,) = ledger.wait_for("start")
    node.kill("SIGQUIT")
    node.exit_status(60)
    eventually(lambda: not is_alive(begun["pid"]))
    (tmp_path / "gate").touch()
    start()
    assert result.get(timeout=60) == "gate done"
    assert suspects(act) == 0


@pytest.mark.full
def test_a_child_is_set_up_for_django(app, start, ledger):
    start(DJANGO_SETTINGS_MODULE="django.conf.global_settings")
    app.tasks["act"].delay("1", "django")
    (found,) = ledger.wait_for("django")
    assert (found["ready"], found["closes"]) == (True, True)


ELSEWHERE = """
import os
from celery_lowkiq import ordered_task
from tests.worker.in_processes import app, note

@ordered_task(app=app, name={name!r}, shards=1)
def run(payloads_by_id):
    note({name!r}, pid=os.getpid())
"""


def test_modules_that_the_apps_own_does_not_import(app, settings, start, ledger, tmp_path):
    """That of ``-A`` imports them; one more comes while processes live."""
    settings["worker_pool_restarts"] = True
    (tmp_path / "entry.py").write_text(ELSEWHERE.format(name="first"))
    (tmp_path / "later.py").write_text(ELSEWHERE.format(name="second"))
    node = start(module="entry", PYTHONPATH=tmp_path, lanes=1)
    app.send_task("first", ("1", "payload"))
    (first,) = ledger.wait_for("first")
    command(app, "pool_restart", "w0@test", modules=["later"])
    app.send_task("second", ("1", "payload"))
    (second,) = ledger.wait_for("second")
    assert len({pid_of(node), first["pid"], second["pid"]}) == 3
