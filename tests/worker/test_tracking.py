"""Trackers while workers die, stop, and lose their Redis."""

from __future__ import annotations

import threading

import pytest

from celery_lowkiq import StoreUnavailable, track
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.tracking import Counts
from tests.waiting import eventually

WAIT = 60


def said(tracker, job_id):
    (call,) = [call for call in tracker.jobs().items if call.id == job_id]
    return [(message.state.value, message.text) for message in call.messages]


def test_a_worker_that_is_killed_counts_nothing_twice(app, start_worker, ledger, tmp_path):
    """It dies in the middle of two runs, with others behind them and some told already."""
    with track("killed", app) as tracker:
        app.tasks["record"].perform_async([{"id": n} for n in range(50)], tracker=tracker)
        app.tasks["gated"].perform_async([{"id": n} for n in range(4)], tracker=tracker)
    first = start_worker("-c", "2", "-P", "threads")
    ledger.wait_for("start", 2)
    eventually(lambda: tracker.counts().working)
    first.kill("SIGKILL")
    (tmp_path / "gate").touch()
    start_worker("-c", "2", "-P", "threads")
    assert tracker.wait(WAIT)
    # On a cluster, calls that were told of and not settled run again.
    eventually(lambda: tracker.counts() == Counts(finished=54))
    assert tracker.counts().total == len(tracker.jobs(limit=1000).items)


def test_an_interrupted_run_is_an_error_and_waits(app, start_worker, ledger):
    with track("interrupted", app) as tracker:
        app.tasks["outcome"].perform_async([{"id": 1, "payload": "exit"}], tracker=tracker)
    node = start_worker()
    eventually(lambda: node.container.status == "exited")
    assert tracker.counts() == Counts(enqueued=1)
    assert said(tracker, "1") == [("error", "interrupted: SystemExit: 3")]


@pytest.mark.full
def test_what_a_killed_worker_ran_says_so_when_it_runs_again(app, start_worker, ledger, tmp_path):
    with track("interrupted", app) as tracker:
        app.tasks["gated"].perform_async([{"id": 1}], tracker=tracker)
    first = start_worker()
    ledger.wait_for("start")
    first.kill("SIGKILL")
    start_worker()
    ledger.wait_for("start", 2)
    assert said(tracker, "1") == [("error", "interrupted: the worker of its last run is gone")]
    (tmp_path / "gate").touch()
    assert tracker.wait(WAIT)


@pytest.mark.full
def test_a_poison_pill_ends_as_error(app, start_worker):
    with track("poison", app) as tracker:
        app.tasks["batches"].perform_async([{"id": 1, "payload": "kill"}, {"id": 2}], tracker=tracker)
    while tracker.counts().pending:
        node = start_worker(wait=False)
        eventually(lambda node=node: node.container.status == "exited" or not tracker.counts().pending, WAIT)
    assert tracker.counts() == Counts(finished=1, error=1)
    assert "poison pill" in said(tracker, "1")[-1][1]


@pytest.mark.full
def test_a_requeued_call_goes_back_and_finishes(app, start_worker, ledger):
    tracker = app.tasks["outcome"].track([{"id": 1, "payload": "requeue"}])
    start_worker()
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(finished=1)


def test_a_large_group_is_counted_and_cancelled(app):
    tracker = app.tasks["record"].track({"id": n} for n in range(2500))
    assert tracker.counts() == Counts(enqueued=2500)
    seen = []
    assert tracker.cancel(seen.append) == 2500
    assert seen == [500, 1000, 1500, 2000, 2500], "in bounded steps"
    assert tracker.wait(0)
    assert tracker.view().done


def test_whoever_waits_is_woken_by_a_cancel(app, store_nodes):
    """Sooner than it would look by itself."""
    app.conf.lowkiq_poll_interval = 3600
    tracker = app.tasks["record"].track([{"id": 1}])
    ended = []
    waiter = threading.Thread(target=lambda: ended.append(tracker.wait(WAIT)))
    waiter.start()
    eventually(lambda: any(node.pubsub_channels() for node in store_nodes))
    tracker.cancel()
    waiter.join(WAIT)
    assert ended == [True]


def test_a_push_that_fails_marks_its_calls(app, monkeypatch):
    pusher = context_of(app).store.pusher

    def away(*args):
        raise StoreUnavailable("gone")

    monkeypatch.setattr(pusher, "push", away)
    tracker = track("fails", app)
    with pytest.raises(StoreUnavailable):
        app.tasks["record"].perform_async([{"id": 1}], tracker=tracker)
    assert tracker.counts() == Counts(failed=1)
    assert said(tracker, "1") == [("failed", "not pushed: StoreUnavailable: gone")]
