"""Weights of queues, in a worker of one lane."""

from __future__ import annotations

JOBS = 600


def test_a_weight_of_no_queue_is_warned_of(settings, start_worker):
    settings["lowkiq_queue_weights"] = {"record": 3, "recrod": 2}
    assert "lowkiq_queue_weights names recrod, which is no ordered queue of this app" in start_worker().logs()


def test_two_full_queues_get_their_shares(app, settings, start_worker, ledger):
    settings |= {"lowkiq_queue_weights": {"record": 3, "batches": 1}, "lowkiq_window": 1}
    app.tasks["record"].perform_async([{"id": n} for n in range(JOBS)])
    app.tasks["batches"].perform_async([{"id": n} for n in range(3 * JOBS)])
    start_worker(lanes=1)
    ledger.wait_for("start", 450, seconds=90)
    # The first ones ran while the node had not taken all shards yet.
    runs = [line["event"] for line in ledger.lines() if line["event"] in ("start", "batch")][50:450]
    assert 0.63 < runs.count("start") / len(runs) < 0.87
