"""Weights of queues, and priorities of calls, in a worker of one lane."""

from __future__ import annotations

import pytest

from tests.waiting import eventually

JOBS = 600


@pytest.mark.full
def test_a_weight_of_no_queue_is_warned_of(settings, start_worker):
    settings["lowkiq_queue_weights"] = {"record": 3, "recrod": 2}
    assert (
        "lowkiq_queue_weights names recrod, which is not an ordered queue of this app"
        in start_worker().logs()
    )


@pytest.mark.full
def test_two_full_queues_get_their_shares(app, settings, start_worker, ledger):
    settings |= {"lowkiq_queue_weights": {"record": 3, "batches": 1}, "lowkiq_window": 1}
    app.tasks["record"].perform_async([{"id": n} for n in range(JOBS)])
    app.tasks["batches"].perform_async([{"id": n} for n in range(3 * JOBS)])
    start_worker(lanes=1)
    ledger.wait_for("start", 450, seconds=90)
    # The first ones ran while the node had not taken all shards yet.
    runs = [line["event"] for line in ledger.lines() if line["event"] in ("start", "batch")][50:450]
    assert 0.63 < runs.count("start") / len(runs) < 0.87


def test_the_more_urgent_calls_of_a_shard_run_first(app, start_worker, ledger):
    batches = app.tasks["batches"]
    batches.ordered_queue.pause()
    batches.perform_async([{"id": f"9-{n}", "priority": 9} for n in range(4)])
    batches.apply_async(("5-0",), priority=5)
    batches.delay("0-0")
    batches.apply_async(("9-3",), priority=1)
    start_worker(lanes=1)
    batches.ordered_queue.resume()
    runs = ledger.wait_for("survived", 2)
    assert [job_id for run in runs for job_id in run["ids"]] == ["0-0", "9-3", "5-0", "9-0", "9-1", "9-2"]


@pytest.mark.full
def test_a_retry_waits_behind_calls_that_came_later(app, settings, start_worker, ledger):
    settings["task_annotations"] = {"outcome": {"retry_priority": 9, "retry_in": 1}}
    outcome = app.tasks["outcome"]
    start_worker(lanes=1)
    outcome.delay("fails", "fail")
    eventually(lambda: outcome.ordered_queue.stats().retries)
    outcome.ordered_queue.pause()
    eventually(lambda: outcome.ordered_queue.stats().oldest)
    outcome.delay("fresh", "ok")
    outcome.ordered_queue.resume()
    assert [run["id"] for run in ledger.wait_for("run", 3)] == ["fails", "fresh", "fails"]
