"""Tracked calls without Redis: what becomes of a state, and who is told when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import Retry

from celery_lowkiq import BusinessFailure, InvalidCall, Tracker, ordered_task, track
from celery_lowkiq.integration.decisions import CallOutcome
from celery_lowkiq.integration.records import CallRecord, end_of_call
from celery_lowkiq.integration.run import PROGRESS_INTERVAL, TrackedCalls
from celery_lowkiq.integration.settings import format_message
from celery_lowkiq.integration.task import read_progress
from celery_lowkiq.integration.tracking import read_states
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Job, Lease, ShardRef
from celery_lowkiq.rules.redaction import Redactor
from celery_lowkiq.rules.tracking import (
    Counts,
    State,
    TrackerUpdate,
    TrackerView,
    began,
    ended,
    ended_without_run,
    waits,
)

RUN = began("t", "call", 5, 7, 3)
SETTINGS = SimpleNamespace(format_error=format_message, redactor=Redactor(()))


@pytest.mark.parametrize(
    ("over", "success", "business", "state", "message_state"),
    [
        (True, True, False, State.FINISHED, None),
        (True, False, False, State.ERROR, State.ERROR),
        (True, False, True, State.FAILED, State.FAILED),
        (False, False, False, State.ENQUEUED, State.ERROR),
        (False, True, False, State.ENQUEUED, State.ERROR),
    ],
)
def test_what_the_end_of_a_run_makes_of_a_call(over, success, business, state, message_state):
    news = ended(RUN, over, success, business, "boom")
    assert news.state is state
    assert (news.text, news.message_state) == (
        ("boom", message_state) if message_state else ("", RUN.message_state)
    )
    assert (news.tracker, news.call, news.epoch, news.claim) == ("t", "call", 5, 7)


def test_who_has_no_run_names_none():
    news = ended_without_run("t", "call", State.FAILED, "deleted")
    assert (news.epoch, news.claim, news.message_state) == (0, 0, State.FAILED)


def test_counts():
    counts = Counts(enqueued=1, working=2, finished=3, failed=4, error=5)
    assert (counts.pending, counts.ended, counts.total) == (3, 12, 15)
    assert Counts.of({"enqueued": b"1", "working": b"2", "finished": 3, "failed": 4, "error": "5"}) == counts


@pytest.mark.parametrize(
    ("closed", "counts", "done"),
    [(True, Counts(finished=1), True), (True, Counts(working=1), False), (False, Counts(), False)],
)
def test_a_tracker_is_done_when_nothing_is_to_come(closed, counts, done):
    assert TrackerView("t", "name", 1.0, closed, False, counts).done is done


class TrackerStore:
    def __init__(self, cancelled=(), error=None):
        self.told = []
        self.cancelled = set(cancelled)
        self.error = error

    def update(self, news):
        if self.error is not None:
            raise self.error
        self.told.append(list(news))
        return self.cancelled

    def progress(self, runs, text, current, total):
        if self.error is not None:
            raise self.error
        self.told.append(([run.call for run in runs], text, current, total))


LEASE = Lease(ShardRef("orders", 3), "me", 5)


def job(job_id="1", claim=7):
    return Job(job_id, (), 0.0, claim=claim)


def tracked(tracker_store, *calls):
    """Whose calls (id, tracker, job) have begun."""
    made = TrackedCalls(LEASE, tracker_store, SETTINGS)
    made.begin((job(job_id), CallRecord(call, tracker=tracker), True) for call, tracker, job_id in calls)
    tracker_store.told.clear()
    return made


def test_a_batch_without_tracked_calls_asks_nothing():
    tracker_store = TrackerStore(error=AssertionError("asked"))
    calls = TrackedCalls(LEASE, tracker_store, SETTINGS)
    assert calls.begin([(job(), CallRecord("call"), True)]) == set()
    assert end_of_call(CallRecord("call"), "revoked") == []
    assert calls.ended(job(), CallRecord("call"), None, over=True) == []
    calls.progress("half", 1, 2)


def test_calls_of_a_cancelled_tracker_shall_not_run_and_hear_of_no_progress():
    tracker_store = TrackerStore(cancelled={"gone"})
    calls = TrackedCalls(LEASE, tracker_store, SETTINGS)
    notes = [CallRecord("a", tracker="gone"), CallRecord("b", tracker="kept"), CallRecord("c")]
    assert calls.begin((job(), note, True) for note in notes) == {"a"}
    assert tracker_store.told == [[began("gone", "a", 5, 7, 3), began("kept", "b", 5, 7, 3)]]
    calls.progress("half", None, None)
    assert tracker_store.told[1] == (["b"], "half", None, None)


def test_calls_that_a_run_is_not_handed_go_on_waiting_unless_their_tracker_was_cancelled():
    tracker_store = TrackerStore(cancelled={"gone"})
    calls = TrackedCalls(LEASE, tracker_store, SETTINGS)
    given = [("a", "t", True), ("b", "t", False), ("c", "gone", False), ("d", "gone", False)]
    shall_not = calls.begin((job(), CallRecord(call, tracker=of), handed) for call, of, handed in given)
    assert shall_not == {"c", "d"}
    assert tracker_store.told == [[began("t", "a", 5, 7, 3), waits("gone", "d")]]


def test_a_run_does_not_begin_while_its_tracker_is_away():
    with pytest.raises(StoreUnavailable):
        tracked(TrackerStore(error=StoreUnavailable("gone")), ("a", "t", "1"))


def test_a_broken_tracker_does_not_stop_a_run(caplog):
    calls = tracked(TrackerStore(error=StoreError("WRONGTYPE")), ("a", "t", "1"))
    calls.progress("half", 1, 2)
    assert "the beginning of a run was not reported to trackers: WRONGTYPE" in caplog.text


def test_progress_of_one_job_or_of_all():
    tracker_store = TrackerStore()
    calls = tracked(tracker_store, ("a", "t", "1"), ("b", "t", "2"), ("c", "u", "2"))
    calls.progress("all", 1, 2)
    calls.progress("one", 1, 2, "2")
    calls.progress("none", 1, 2, "3")
    assert tracker_store.told == [(["a", "b", "c"], "all", 1, 2), (["b", "c"], "one", 1, 2)]


def test_progress_without_a_text_is_told_now_and_then_and_at_its_end(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("celery_lowkiq.integration.run.time.monotonic", lambda: now[0])
    tracker_store = TrackerStore()
    calls = tracked(tracker_store, ("a", "t", "1"))
    for current in range(1, 5):
        calls.progress("", current, 4)
    calls.progress("said", 5, None)
    now[0] += PROGRESS_INTERVAL
    calls.progress("", 6, None)
    assert [told[2] for told in tracker_store.told] == [1, 4, 5, 6]


def test_progress_that_cannot_be_told_is_logged_and_the_run_goes_on(caplog):
    tracker_store = TrackerStore()
    calls = tracked(tracker_store, ("a", "t", "1"))
    tracker_store.error = StoreUnavailable("gone")
    calls.progress("half", 1, 2)
    assert "progress was not reported to a tracker: gone" in caplog.text


def test_an_interrupted_run_is_told_at_once(caplog):
    tracker_store = TrackerStore()
    calls = tracked(tracker_store, ("a", "t", "1"))
    calls.interrupted(SystemExit(3))
    text = "interrupted: SystemExit: 3"
    assert tracker_store.told == [[TrackerUpdate("t", "a", State.ENQUEUED, State.ERROR, text, 5, 7, 3)]]
    tracker_store.error = StoreUnavailable("gone")
    calls.interrupted(SystemExit(3))
    assert "the interruption of a run was not reported to trackers: gone" in caplog.text


@pytest.mark.parametrize(
    ("ending", "over", "state", "text"),
    [
        (None, False, State.ENQUEUED, ""),
        (CallOutcome(True, give=lambda: 1, success=True), True, State.FINISHED, ""),
        (CallOutcome(True, error=ValueError("boom")), True, State.ERROR, "ValueError: boom"),
        (CallOutcome(True, error=BusinessFailure("not eligible")), True, State.FAILED, "not eligible"),
        (CallOutcome(False, error=Retry(exc=ValueError("boom"))), False, State.ENQUEUED, "ValueError: boom"),
    ],
    ids=["returned", "success", "error", "business", "retry"],
)
def test_what_a_tracker_is_told_of_an_ending(ending, over, state, text):
    (news,) = tracked(TrackerStore()).ended(job(), CallRecord("call", tracker="t"), ending, over)
    assert (news.state, news.text, news.epoch, news.claim) == (state, text, 5, 7)


@pytest.mark.parametrize("wrong", [(7, 1, 2, None), ("", "1", 2, None), ("", 1, float("nan"), None)])
def test_progress_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidCall):
        read_progress(*wrong)


def test_states_by_name():
    assert read_states(None) == tuple(State)
    assert read_states("error") == read_states([State.ERROR]) == (State.ERROR,)
    with pytest.raises(InvalidCall, match="'lost' is invalid: expected one or more of enqueued"):
        read_states("lost")


@pytest.fixture
def app():
    made = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)

    @ordered_task(app=made, shared=False, bind=True, name="t")
    def told(self, payloads_by_id):
        self.progress("half", current=1, total=2)

    return made


@pytest.mark.parametrize("name", ["", "x" * 201, None])
def test_a_tracker_has_a_name(app, name):
    with pytest.raises(InvalidCall, match="1 to 200 characters"):
        track(name, app=app)


def test_eager_calls_have_no_tracker_and_ignore_progress(app):
    app.conf.task_always_eager = True
    with pytest.raises(InvalidCall, match="task_always_eager"):
        track("name", app=app)
    with pytest.raises(InvalidCall, match="task_always_eager"):
        app.tasks["t"].perform_async([{"id": 1}], tracker="0" * 32)
    assert app.tasks["t"].delay("1").state == "SUCCESS"


def test_a_tracker_travels_as_its_id(app):
    assert Tracker(app, "0" * 32, "name").__json__() == "0" * 32
