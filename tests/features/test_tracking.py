"""Trackers: what becomes of each, and their counts."""

from __future__ import annotations

import pytest

from celery_lowkiq import InvalidCall, Tracker, track, trackers
from celery_lowkiq.rules.errors import SubscriptionLost
from celery_lowkiq.rules.tracking import Counts
from celery_lowkiq.store.listener import Listener
from tests.waiting import eventually

WAIT = 30


@pytest.fixture
def tracker(features):
    return track("test", features.app)


def by_id(tracker):
    return {call.id: call for call in tracker.jobs().items}


def said(call):
    return [(message.state.value, message.text) for message in call.messages]


def test_a_group_over_two_tasks(features, work, new_id):
    quiet = features.app.tasks["quiet"]
    with track("over two", features.app) as tracker:
        work.perform_async([{"id": new_id()} for _ in range(5)], tracker=tracker)
        result = work.apply_async((new_id(), "x"), tracker=tracker)
        quiet.perform_async([{"id": new_id(), "payload": {"fail": "boom"}}], tracker=tracker.id)
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(finished=6, error=1)
    assert result.get(WAIT)[1] == ["x"]
    calls = tracker.jobs().items
    assert [call.queue for call in calls] == ["work"] * 6 + ["quiet"]
    assert calls[5].task_id == result.id
    assert (calls[5].payload, calls[6].payload) == ("x", {"fail": "boom"})
    assert said(calls[6]) == [("error", "ValueError: boom")]


def test_track_opens_fills_and_closes(features, work, new_id):
    tracker = work.track([{"id": new_id()} for _ in range(3)], name="mine")
    assert Tracker.get(features.app, tracker.id).wait(WAIT)
    view = tracker.view()
    assert (view.name, view.closed, view.done, view.counts.total) == ("mine", True, True, 3)
    assert view.id in {listed.id for listed in trackers(features.operator).items}


def test_a_wait_goes_on_when_its_subscription_is_lost(features, work, tracker, job_id, monkeypatch):
    """As on a cluster, when the master that is listened to is replaced."""
    gate = f"gate-{job_id}"
    work.perform_async([{"id": job_id, "payload": {"gate": gate}}], tracker=tracker)
    features.wait_for("held", gate=gate)
    wait, lost = Listener.wait, []

    def lose(listener, timeout):
        if len(lost) < 3:
            lost.append(listener)
            raise SubscriptionLost("Redis is not available: the master of the subscription is unreachable")
        (features.directory / gate).touch()
        return wait(listener, timeout)

    monkeypatch.setattr(Listener, "wait", lose)
    assert tracker.wait(WAIT)
    assert len(set(map(id, lost))) == 3


def test_a_wait_whose_subscriptions_are_all_lost_does_not_spin(features, work, tracker, job_id, monkeypatch):
    """As when the first answer of each master is its last one."""
    gate, lost = f"gate-{job_id}", []
    work.perform_async([{"id": job_id, "payload": {"gate": gate}}], tracker=tracker)

    def lose(listener, timeout):
        lost.append(listener)
        raise SubscriptionLost("Redis is not available: the master of the subscription is unreachable")

    monkeypatch.setattr(Listener, "wait", lose)
    assert not tracker.wait(0.35)
    (features.directory / gate).touch()
    assert 1 <= len(lost) < 10


def test_states_and_progress_of_a_run(features, work, tracker, job_id):
    gate = f"gate-{job_id}"
    work.perform_async([{"id": job_id, "payload": {"say": "half", "gate": gate}}], tracker=tracker)
    features.wait_for("held", gate=gate)
    call = by_id(tracker)[job_id]
    assert (call.state, call.current, call.total) == ("working", 1, 2)
    assert said(call) == [("working", "half")]
    assert not tracker.wait(0.05)
    (features.directory / gate).touch()
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(finished=1)


def test_an_error_waits_for_its_retry(features, work, tracker, job_id):
    slow = features.app.tasks["slow to retry"]
    slow.perform_async([{"id": job_id, "payload": {"fail": "boom"}}], tracker=tracker)
    features.wait_for("run", id=job_id)
    call = tracker_is(tracker, Counts(enqueued=1), job_id)
    assert said(call) == [("error", "ValueError: boom")]


def tracker_is(tracker, counts, job_id):
    """Once something was said of the call."""
    eventually(lambda: tracker.counts() == counts and by_id(tracker)[job_id].messages)
    return by_id(tracker)[job_id]


def test_each_error_is_a_message_and_the_last_one_is_final(features, work, tracker, job_id):
    work.perform_async([{"id": job_id, "payload": {"fail": "boom"}}], tracker=tracker)
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(error=1)
    assert said(by_id(tracker)[job_id]) == [("error", "ValueError: boom")] * 3


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_a_business_failure_ends_as_failed_with_its_message(features, work, tracker, job_id, merged):
    with features.holding(work, job_id) if merged else features.nothing():
        for payload in [1, {"business": "not eligible"}] if merged else [{"business": "not eligible"}]:
            work.apply_async((job_id, payload), tracker=tracker)
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(failed=1 + merged)
    assert {tuple(said(call)) for call in tracker.jobs().items} == {(("failed", "not eligible"),)}


def test_what_a_run_is_not_handed_waits(features, tracker, job_id):
    portions, gate = features.app.tasks["portions"], f"gate-{job_id}"
    with features.holding(portions, job_id):
        for number, payload in enumerate((1, {"gate": gate}, 3, 4, 5)):
            portions.apply_async((job_id, payload), score=number, tracker=tracker)
    features.wait_for("held", gate=gate)
    assert tracker.counts() == Counts(working=2, enqueued=3)
    tracker.cancel()
    (features.directory / gate).touch()
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(finished=2, failed=3)
    eventually(lambda: portions.ordered_queue.job(job_id).waiting is None)
    assert len(features.noted("run", id=job_id)) == 2


def test_payloads_that_are_left_wait_again(features, work, tracker, job_id):
    with features.holding(work, job_id):
        for score in (1, 2, 3):
            work.apply_async((job_id, {"n": score, "take": 2, "return": "all"}), score=score, tracker=tracker)
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(finished=3)


def test_merged_calls_keep_the_counts_of_each_tracker_right(features, work, tracker, job_id):
    other = track("other", features.app)
    with features.holding(work, job_id):
        for payload, group in ((1, tracker), (1, tracker), (2, tracker), (1, other), (3, other)):
            work.apply_async((job_id, payload), tracker=group)
        work.delay(job_id, 4)
        assert (tracker.counts(), other.counts()) == (Counts(enqueued=3), Counts(enqueued=2))
    assert tracker.wait(WAIT)
    assert other.wait(WAIT)
    assert (tracker.counts(), other.counts()) == (Counts(finished=3), Counts(finished=2))
    _held, run = features.noted("run", id=job_id)
    assert sorted(run["payloads"]) == [1, 2, 3, 4]


def test_payloads_that_die_one_after_the_other(features, work, tracker, job_id):
    with features.holding(work, job_id):
        for score in (1, 2):
            work.apply_async((job_id, {"fail": f"boom {score}"}), score=score, tracker=tracker)
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(error=2)


def test_a_batch_of_many(features, tracker, new_id):
    batch = features.app.tasks["batch"]
    jobs = [{"id": new_id(), "payload": {"fail": "x"} if n % 3 == 0 else {}} for n in range(12)]
    batch.perform_async(jobs, tracker=tracker)
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(finished=8, error=4)


def test_more_calls_of_a_job_than_come_with_its_claim(features, work, tracker, job_id):
    """They are read page by page, and told so, too."""
    with features.holding(work, job_id):
        for _ in range(3):
            work.perform_async([{"id": job_id, "payload": n % 2} for n in range(100)], tracker=tracker)
    assert tracker.wait(60)
    assert tracker.counts() == Counts(finished=300)


def test_cancelled_calls_do_not_run_and_what_runs_goes_on(features, work, tracker, job_id, new_id):
    gate, later = f"gate-{job_id}", new_id()
    work.perform_async([{"id": job_id, "payload": {"gate": gate}}], tracker=tracker)
    features.wait_for("held", gate=gate)
    waiting = work.apply_async((job_id, "never"), tracker=tracker)
    delayed = work.apply_async((later, "never"), countdown=3600, tracker=tracker)
    kept = work.delay(job_id, "kept")
    assert tracker.cancel() == 2
    assert tracker.counts() == Counts(working=1, failed=2)
    (features.directory / gate).touch()
    assert kept.get(WAIT) == [job_id, ["kept"]]
    assert tracker.wait(WAIT)
    assert waiting.state == "REVOKED"
    assert tracker.counts() == Counts(finished=1, failed=2)
    assert said(by_id(tracker)[later]) == [("failed", "cancelled")]
    with pytest.raises(InvalidCall, match="was cancelled"):
        work.perform_async([{"id": later}], tracker=tracker)
    work.ordered_queue.run_now_all()
    eventually(lambda: delayed.state == "REVOKED")


def test_a_call_into_a_cancelled_tracker_is_revoked(features, work, tracker, job_id):
    """A link of a chain must not fail for it."""
    tracker.cancel()
    result = work.apply_async((job_id, "never"), tracker=tracker)
    with pytest.raises(Exception, match="revoked"):
        result.get(WAIT)
    assert not features.noted("run", id=job_id)


def test_deleted_killed_and_revoked_calls(features, tracker, new_id):
    slow = features.app.tasks["slow to retry"]
    deleted, killed = new_id(), new_id()
    slow.apply_async((deleted, "x"), countdown=3600, tracker=tracker)
    slow.apply_async((killed, {"fail": "boom"}), tracker=tracker)
    tracker_is(tracker, Counts(enqueued=2), killed)
    slow.ordered_queue.bury_failed()
    slow.ordered_queue.delete([deleted])
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(error=1, failed=1)
    assert said(by_id(tracker)[deleted]) == [("failed", "the job was deleted")]


def test_an_expired_call_has_failed(features, work, tracker, job_id):
    with features.holding(work, job_id):
        work.apply_async((job_id, "late"), expires=0.01, tracker=tracker)
        began = features.app.now()
        eventually(lambda: (features.app.now() - began).total_seconds() > 0.05)
    assert tracker.wait(WAIT)
    assert said(by_id(tracker)[job_id]) == [("failed", "expired")]


def test_a_signature_carries_its_tracker(features, work, tracker, new_id):
    first, second = new_id(), new_id()
    (work.s(first, {"return": "on"}) | work.s(second).set(tracker=tracker)).apply_async()
    features.wait_for("run", id=second)
    assert tracker.wait(WAIT)
    assert by_id(tracker)[second].state == "finished"


def test_states_are_filtered_and_paged(features, work, tracker, new_id):
    jobs = [{"id": new_id(), "payload": {"reject": "no"} if n % 2 else ""} for n in range(6)]
    work.perform_async(jobs, tracker=tracker)
    assert tracker.wait(WAIT)
    first = tracker.jobs("error", limit=2)
    rest = tracker.jobs(["error", "failed"], limit=2, after=first.next)
    assert [call.id for call in (*first.items, *rest.items)] == [job["id"] for job in jobs[1::2]]
    with pytest.raises(
        InvalidCall, match="expected one or more of enqueued, working, finished, failed, error"
    ):
        tracker.jobs("done")


def test_large_payloads_are_shown_cut(features, work, tracker, job_id):
    work.perform_async([{"id": job_id, "payload": "é" * 2000}], tracker=tracker)
    payload = by_id(tracker)[job_id].payload
    assert payload.startswith('"éé')
    assert payload.endswith("é...")
    assert len(payload) < 600


@pytest.mark.parametrize("given", [7, "x" * 32, "0" * 32])
def test_what_is_no_tracker_is_refused(work, job_id, given):
    with pytest.raises(InvalidCall):
        work.perform_async([{"id": job_id}], tracker=given)
    assert work.ordered_queue.job(job_id).waiting is None
