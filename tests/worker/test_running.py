"""Ordered tasks on a real worker process."""

from __future__ import annotations

import sys
import time

import pytest

from celery_lowkiq.rules.text import last_error_line
from celery_lowkiq.store.keys import shard_keys
from tests.waiting import eventually


def settled(task):
    return eventually(lambda: (s := task.ordered_queue.stats()).length == s.busy == 0 and s)


def test_calls_of_an_id_are_merged_and_run_in_order_of_their_scores(app, start_worker, ledger):
    record = app.tasks["record"]
    record.delay("42", {"v": 1})
    record.delay("42", {"v": 2})
    record.apply_async(("42", {"v": 0}), score=-1)
    record.perform_async([{"id": n, "payload": n} for n in range(20)])
    start_worker()
    ends = {line["id"]: line["payloads"] for line in ledger.wait_for("end", 21)}
    assert ends["42"] == [{"v": 0}, {"v": 1}, {"v": 2}]
    assert all(ends[str(n)] == [n] for n in range(20))
    assert settled(record).processed == 21


def test_a_batch_and_what_the_request_says_of_it(app, start_worker, ledger):
    batches = app.tasks["batches"]
    batches.perform_async([{"id": n, "payload": n, "score": 5 + n, "perform_in": n} for n in range(4)])
    start_worker()
    first, second = ledger.wait_for("batch", 2)
    assert first["payloads"] == {"0": [0], "1": [1], "2": [2]}
    assert first["jobs"] == [["0", [5.0], -1], ["1", [6.0], -1], ["2", [7.0], -1]]
    assert (first["queue"], first["shard"]) == ("batches", 0)
    assert second["payloads"] == {"3": [3]}
    assert first["fence"] == second["fence"] > 0


def test_ordinary_tasks_run_beside(app, start_worker, ledger):
    start_worker(lanes=1)
    app.tasks["gated"].delay("1")
    ledger.wait_for("start")
    app.tasks["plain"].delay(7)
    assert ledger.wait_for("plain")[0]["value"] == 7
    assert not ledger.lines("end")


def test_a_push_wakes_an_idle_worker(app, settings, start_worker, ledger, tmp_path):
    settings["lowkiq_poll_interval"] = 60
    app.conf.lowkiq_poll_interval = 60
    record = app.tasks["record"]
    start_worker()
    record.delay("first")
    ledger.wait_for("end")
    for number in range(3):
        began = time.monotonic()
        record.delay(f"wake-{number}")
        ends = ledger.wait_for("end", number + 2)
        assert ends[-1]["at"] - began < 5


def test_a_countdown_is_kept_and_ends_in_time(app, settings, start_worker, ledger):
    settings["lowkiq_poll_interval"] = 60
    start_worker()
    began = time.monotonic()
    app.tasks["record"].apply_async(("later",), countdown=4.0)
    app.tasks["record"].apply_async(("sooner",), countdown=0.5)
    ends = ledger.wait_for("end", 2)
    assert [line["id"] for line in ends] == ["sooner", "later"]
    assert ends[1]["at"] - began >= 3.9


def test_failures_are_retried_and_then_die(app, start_worker, ledger):
    outcome = app.tasks["outcome"]
    outcome.apply_async(("1", "fail"), score=1)
    outcome.apply_async(("1", "rest"), score=2)
    start_worker()
    runs = ledger.wait_for("run", 3)
    assert [(run["payloads"], run["retries"]) for run in runs] == [
        (["fail", "rest"], 0),
        (["fail", "rest"], 1),
        (["rest"], 0),
    ]
    assert len({run["task_id"] for run in runs}) == 3
    stats = settled(outcome)
    assert (stats.processed, stats.failed, stats.morgue_length) == (1, 2, 1)
    (dead,) = outcome.ordered_queue.morgue().items
    assert [p.value for p in dead.payloads] == ["fail"]
    assert last_error_line(dead.error) == "ValueError: as asked"
    ((found,),) = [line["jobs"] for line in ledger.lines("exhausted")]
    *job, error = found
    assert job == ["1", ["fail"], [1.0], 1], "O8: of what died, not of what lives on"
    assert error == dead.error


#: How a run ends, and what that adds: runs, processed, failed and dead jobs, and the error of the dead one.
OUTCOMES = {
    "ok": (1, 1, 0, 0, None),
    "retry": (2, 0, 2, 1, "KeyError: 'again'"),
    "ignore": (1, 1, 0, 0, None),
    "reject": (1, 0, 1, 1, "Reject: not mine"),
    "requeue": (2, 1, 0, 0, None),
    "memory": (2, 0, 2, 1, "MemoryError: too much"),
}


def test_what_an_outcome_does(app, start_worker, ledger):
    """One after the other, in one worker."""
    outcome, before = app.tasks["outcome"], (0, 0, 0)
    start_worker()
    for what, (runs, *added, error) in OUTCOMES.items():
        expected = tuple(map(sum, zip(before, added, strict=True)))
        outcome.delay(what, what)
        wait_for_ends(outcome, sum(expected[:2]))
        assert counts(outcome) == expected, what
        assert len([run for run in ledger.lines("run") if run["id"] == what]) == runs, what
        dead = [job for job in outcome.ordered_queue.morgue().items if job.id == what]
        assert [last_error_line(job.error) for job in dead] == [error] * (error is not None), what
        before = expected


def wait_for_ends(task, count):
    eventually(lambda: sum(counts(task)[:2]) == count)
    settled(task)


def counts(task):
    """Processed, failed and dead jobs."""
    stats = task.ordered_queue.stats()
    return stats.processed, stats.failed, stats.morgue_length


def test_a_base_exception_of_the_function_is_a_failed_run(app, start_worker, ledger):
    """O5: ``asyncio.CancelledError``, or a user's own, is retried and dies as any error; no worker ends."""
    outcome = app.tasks["outcome"]
    errors = {
        "cancelled": "asyncio.exceptions.CancelledError",
        "own": "tests.worker.proj.Halt: mine",
        "fail": "ValueError: as asked",
    }
    if sys.version_info >= (3, 11):
        errors["group"] = "BaseExceptionGroup: several (2 sub-exceptions)"
    for what in errors:
        outcome.delay(what, what)
    node = start_worker(lanes=1)
    ledger.wait_for("exhausted", len(errors))
    outcome.delay("later", "ok")
    eventually(lambda: outcome.ordered_queue.stats().processed == 1)
    assert {job.id: last_error_line(job.error) for job in outcome.ordered_queue.morgue().items} == errors
    assert sorted(run["id"] for run in ledger.lines("run")) == sorted([*errors, *errors, "later"])
    assert node.container.status == "running"
    assert "the worker stops" not in node.logs()


@pytest.mark.full
def test_a_requeued_job_waits_a_second_and_others_run_meanwhile(app, start_worker, ledger):
    jobs = [("1", "requeue"), ("2", "ok")]
    app.tasks["outcome"].perform_async(
        [{"id": job_id, "payload": what, "perform_in": int(job_id)} for job_id, what in jobs]
    )
    start_worker()
    runs = ledger.wait_for("run", 3)
    assert [run["id"] for run in runs] == ["1", "2", "1"]
    assert runs[2]["at"] - runs[0]["at"] > 0.95


def test_l6_an_undecodable_payload_goes_to_the_morgue_and_the_lane_goes_on(app, start_worker, ledger):
    outcome = app.tasks["outcome"]
    outcome.delay("1", "good")
    keys = shard_keys(outcome.queue_spec.shard_refs()[0])
    store = outcome.ordered_queue._context.store
    bad = b"\xff\xfe\0"
    store.client.commands(
        [
            ("HSET", keys["jobs"], "1", b'2 6 "good"' + b"1 %d %s" % (len(bad), bad), "2", b"garbage"),
            ("ZADD", keys["due"], 1, "2"),
        ]
    )
    start_worker()
    (run,) = ledger.wait_for("run")
    assert run["payloads"] == ["good"]
    eventually(lambda: outcome.ordered_queue.stats().morgue_length == 2)
    dead = {job.id: job for job in outcome.ordered_queue.morgue().items}
    assert dead["1"].payloads[0].value == bad
    assert not dead["1"].payloads[0].readable
    assert dead["2"].error.startswith("undecodable payload: ")


def test_middlewares_are_around_runs_and_pushes(app, settings, start_worker, ledger, tmp_path):
    settings["lowkiq_server_middlewares"] = [
        "tests.worker.middlewares.outer",
        "tests.worker.middlewares.inner",
    ]
    app.conf.lowkiq_client_middlewares = ["tests.worker.middlewares.client"]
    app.tasks["record"].delay("1", "x")
    from tests.worker import middlewares

    assert middlewares.pushed == [("record", "1", "x")]
    start_worker()
    ledger.wait_for("after outer")
    order = [line["event"] for line in ledger.lines()]
    assert order == ["outer", "inner", "start", "end", "after inner", "after outer"]


@pytest.mark.full
def test_minus_q_and_minus_x_choose_among_ordered_queues(app, start_worker, ledger):
    app.tasks["record"].delay("1")
    app.tasks["outcome"].delay("1", "ok")
    first = start_worker("-Q", "celery,record")
    ledger.wait_for("end")
    app.tasks["plain"].delay(1)
    ledger.wait_for("plain")
    assert not ledger.lines("run")
    first.kill("SIGTERM")
    first.exit_status()
    app.tasks["record"].delay("2")
    start_worker("-X", "record")
    ledger.wait_for("run")
    app.tasks["plain"].delay(2)
    ledger.wait_for("plain", 2)
    assert len(ledger.lines("end")) == 1


@pytest.mark.full
def test_calls_that_arrive_by_the_broker_are_pushed(app, start_worker, ledger):
    """A process without the code can only send the name."""
    start_worker()
    app.send_task("record", ("7", "by name"))
    assert ledger.wait_for("end")[0]["payloads"] == ["by name"]
