"""Pauses as real nodes obey them: within a second, and nothing is lost or out of order afterwards."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict

import pytest

from celery_lowkiq.rules.models import shard_of
from celery_lowkiq.store.keys import shard_keys
from tests.marks import first_often
from tests.waiting import eventually
from tests.worker.checks import leases

IDS = [str(number) for number in range(40)]
#: What is paused, and whether an id belongs to it.
PAUSES = {
    "queue": ({}, lambda job_id: True),
    "shard": ({"shard": 3}, lambda job_id: shard_of(job_id, 8) == 3),
    "id": ({"job_id": "7"}, lambda job_id: job_id == "7"),
}
#: How long is looked at what runs during a pause, in s.
WATCHED = 2.5


def served_by(task, nodes):
    return {lease.owner.partition("@")[0] for lease in leases(task)} == nodes


@contextlib.contextmanager
def calling(task):
    """Calls all the time, until the end of the block. Yields what was called, by id."""
    called, stop = defaultdict(list), threading.Event()

    def call():
        number = 0
        while not stop.wait(0.01):
            number += 1
            task.perform_async([{"id": job_id, "payload": number, "score": number} for job_id in IDS])
            for job_id in IDS:
                called[job_id].append(number)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield called
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("what", first_often(PAUSES))
def test_two_nodes_obey_within_a_second_and_run_all_in_order_afterwards(app, start_worker, ledger, what):
    options, belongs = PAUSES[what]
    record = app.tasks["record"]
    queue = record.ordered_queue
    for _ in range(2):
        start_worker(PROJ_WORK="0.002")
    eventually(lambda: served_by(record, {"w0", "w1"}))
    with calling(record) as called:
        eventually(lambda: len({line["pid"] for line in ledger.lines("start")}) == 2)
        assert queue.pause(**options)
        paused_at = time.monotonic()
        eventually(lambda: time.monotonic() > paused_at + 1 + WATCHED)
        assert queue.resume(**options)
        resumed_at = time.monotonic()
    meanwhile = [
        line["id"] for line in ledger.lines("start") if paused_at + 1 < line["at"] < resumed_at - 0.5
    ]
    assert not [job_id for job_id in meanwhile if belongs(job_id)]
    assert set(meanwhile) == {job_id for job_id in IDS if not belongs(job_id)}
    eventually(lambda: (stats := queue.stats()).length == stats.busy == 0)
    ran = defaultdict(list)
    for line in ledger.lines("start"):
        ran[line["id"]] += line["payloads"]
    assert ran == called


def test_a_resume_is_announced(app, settings, start_worker, ledger):
    """No node would look by itself for longer than the test waits."""
    settings["lowkiq_poll_interval"] = 60
    record = app.tasks["record"]
    queue = record.ordered_queue
    start_worker()
    eventually(lambda: served_by(record, {"w0"}))
    for options in ({}, {"shard": shard_of("7", 8)}, {"job_id": "7"}):
        before = len(ledger.lines("end"))
        queue.pause(**options)
        record.delay("7")
        record.delay("other")
        queue.resume(**options)
        ledger.wait_for("end", before + 2)


def test_an_id_that_is_paused_while_it_runs_is_finished_and_its_next_run_waits(
    app, start_worker, ledger, tmp_path
):
    gated = app.tasks["gated"]
    start_worker()
    gated.delay("1")
    ledger.wait_for("start")
    gated.ordered_queue.pause(job_id="1")
    gated.delay("1", "later")
    (tmp_path / "gate").touch()
    ledger.wait_for("end")
    eventually(lambda: gated.ordered_queue.stats().busy == 0)
    assert gated.ordered_queue.stats().paused_jobs == 1
    gated.ordered_queue.resume(job_id="1")
    ledger.wait_for("end", 2)


@pytest.mark.full
def test_what_was_claimed_ahead_of_a_run_that_turns_long_is_held(app, start_worker, ledger, tmp_path):
    gated = app.tasks["gated"]
    queue = gated.ordered_queue
    ids = [str(number) for number in range(100) if shard_of(str(number), 4) == 0][:10]
    (tmp_path / "gate").touch()
    start_worker()
    # Short runs, which make the lane claim ahead.
    gated.perform_async([{"id": job_id} for job_id in ids])
    ledger.wait_for("end", 10)
    (tmp_path / "gate").unlink()
    gated.perform_async([{"id": job_id} for job_id in ids])
    running = ledger.wait_for("start", 11)[10]["id"]
    assert queue.pause_ids(job_id for job_id in ids if job_id != running) == 9
    eventually(lambda: (queue.stats().busy, queue.stats().paused_jobs) == (1, 9))
    (tmp_path / "gate").touch()
    eventually(lambda: queue.stats().busy == 0)
    assert len(ledger.lines("start")) == 11
    assert queue.resume_all_ids() == 9
    ledger.wait_for("end", 20)


def claims(task):
    """The last claim of each shard."""
    client = task.ordered_queue._context.store.client
    return client.commands([("HGET", shard_keys(s)["meta"], "request") for s in task.queue_spec.shard_refs()])


@pytest.mark.full
def test_ten_thousand_paused_ids_do_not_make_a_lane_spin(app, start_worker, ledger):
    record = app.tasks["record"]
    queue = record.ordered_queue
    queue.pause_ids(range(10_000))
    record.perform_async([{"id": number} for number in range(10_000)])
    start_worker()
    eventually(lambda: served_by(record, {"w0"}))
    began_at = time.monotonic()
    eventually(lambda: time.monotonic() > began_at + WATCHED)
    assert claims(record) == [None] * 8
    record.delay("runs")
    ledger.wait_for("end")
    assert len(set(claims(record))) == 2
    assert [line["id"] for line in ledger.lines("start")] == ["runs"]
    assert queue.stats().paused_jobs == 10_000
