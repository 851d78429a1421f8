"""Tests of ``store/trackers.py``."""

from __future__ import annotations

import base64
import time
from dataclasses import replace

import pytest

from celery_lowkiq.rules.errors import InvalidCall, StoreFull
from celery_lowkiq.rules.models import Call, Disposition, Settlement, ShardRef, shard_of
from celery_lowkiq.rules.tracking import Counts, NewCall, State, began, ended, ended_without_run
from celery_lowkiq.store.call_records import STEP
from celery_lowkiq.store.keys import TRACKER_KEYS, TrackerKeys
from celery_lowkiq.store.trackers import TrackerStore, latest_due
from tests.store import resharding as moves
from tests.store.helpers import ONE, claim, push, take

DAY = 86400


@pytest.fixture
def tracker_store(store):
    return TrackerStore(store.client)


@pytest.fixture
def tracker(tracker_store):
    return tracker_store.open("import", ttl=7 * DAY)


def calls(*names, queue="orders"):
    return [NewCall(name, queue, f"id of {name}", b'"payload"') for name in names]


def counts(tracker_store, tracker):
    return tracker_store.view(tracker).counts


def page(tracker_store, tracker, *states, limit=1000, after=None):
    return tracker_store.calls(tracker, states or tuple(State), limit, after)


def states(tracker_store, tracker):
    return {view.task_id: view.state.value for view in page(tracker_store, tracker).items}


def said(tracker_store, tracker, call="a"):
    (view,) = [view for view in page(tracker_store, tracker).items if view.task_id == call]
    return [(message.state.value, message.text) for message in view.messages]


def test_a_call_goes_through_its_states(tracker_store, tracker):
    assert tracker_store.add(tracker, calls("a"))
    assert counts(tracker_store, tracker) == Counts(enqueued=1)
    run = began(tracker, "a", 5, 1)
    tracker_store.update([run])
    assert counts(tracker_store, tracker) == Counts(working=1)
    tracker_store.update([ended(run, over=True, success=True)])
    assert counts(tracker_store, tracker) == Counts(finished=1)


def test_what_is_known_of_a_call(tracker_store, tracker):
    tracker_store.add(tracker, calls("a"))
    run = began(tracker, "a", 5, 1)
    tracker_store.update([run])
    tracker_store.progress([run], "row 3\nof 10", 3, 10)
    (view,) = page(tracker_store, tracker).items
    assert (view.queue, view.id, view.payload) == ("orders", "id of a", b'"payload"')
    assert (view.state, view.current, view.total) == (State.WORKING, 3.0, 10.0)
    assert [(m.state, m.text) for m in view.messages] == [(State.WORKING, "row 3\nof 10")]
    assert view.updated_at == view.messages[0].at > 1e9


def test_news_that_come_twice_count_once(tracker_store, tracker):
    tracker_store.add(tracker, calls("a", "b"))
    tracker_store.add(tracker, calls("a", "b"))
    run = began(tracker, "a", 5, 1)
    failed = ended(run, over=True, success=False, text="boom")
    for news in (run, run, failed, failed, run):
        tracker_store.update([news])
    assert counts(tracker_store, tracker) == Counts(enqueued=1, error=1)
    assert said(tracker_store, tracker) == [("error", "boom")]


def test_an_error_waits_for_its_retry(tracker_store, tracker):
    tracker_store.add(tracker, calls("a"))
    tracker_store.update([ended(began(tracker, "a", 5, 1), over=False, success=False, text="boom")])
    assert counts(tracker_store, tracker) == Counts(enqueued=1)
    tracker_store.update([ended(began(tracker, "a", 5, 2), over=True, success=True)])
    assert counts(tracker_store, tracker) == Counts(finished=1)
    assert said(tracker_store, tracker) == [("error", "boom")]


@pytest.mark.parametrize("newer", [(5, 2), (6, 1)], ids=["claim", "epoch"])
def test_a_former_run_changes_nothing(tracker_store, tracker, newer):
    """Its shard has changed hands, or its settle was lost: claims begin anew where Redis has lost some."""
    tracker_store.add(tracker, calls("a"))
    former, run = began(tracker, "a", 5, 1), began(tracker, "a", *newer)
    tracker_store.update([former])
    tracker_store.update([run])
    tracker_store.update([ended(former, over=True, success=True)])
    tracker_store.progress([former], "late", 1, 2)
    assert counts(tracker_store, tracker) == Counts(working=1)
    assert said(tracker_store, tracker) == [("error", "interrupted: the worker of its last run is gone")]
    tracker_store.update([ended(run, over=True, success=False, business=True, text="no")])
    assert counts(tracker_store, tracker) == Counts(failed=1)


def test_a_run_that_is_repeated_after_its_end_moves_the_count_back_and_forth(tracker_store, tracker):
    """The worker died between its news and its settle."""
    tracker_store.add(tracker, calls("a"))
    tracker_store.update([ended(began(tracker, "a", 5, 1), over=True, success=True)])
    run = began(tracker, "a", 6, 2)
    tracker_store.update([run])
    assert counts(tracker_store, tracker) == Counts(working=1)
    tracker_store.update([ended(run, over=True, success=True)])
    assert counts(tracker_store, tracker) == Counts(finished=1)
    assert said(tracker_store, tracker) == []


def test_a_call_that_nobody_runs_ends_unless_it_has_ended(tracker_store, tracker):
    tracker_store.add(tracker, calls("a", "b"))
    tracker_store.update([ended(began(tracker, "a", 5, 1), over=True, success=True)])
    tracker_store.update([ended_without_run(tracker, call, State.FAILED, "deleted") for call in "ab"])
    assert states(tracker_store, tracker) == {"a": "finished", "b": "failed"}
    assert said(tracker_store, tracker, "b") == [("failed", "deleted")]


def test_a_push_whose_outcome_was_unknown_and_that_came_through(tracker_store, tracker):
    tracker_store.add(tracker, calls("a"))
    tracker_store.update([ended_without_run(tracker, "a", State.FAILED, "not pushed")])
    tracker_store.update([began(tracker, "a", 5, 1)])
    assert counts(tracker_store, tracker) == Counts(working=1)


def test_news_of_unknown_calls_and_trackers_change_nothing(tracker_store, tracker, client):
    gone = "0" * 32
    assert tracker_store.update([began(tracker, "a", 5, 1), began(gone, "a", 5, 1)]) == set()
    assert counts(tracker_store, tracker) == Counts()
    assert tracker_store.view(gone) is None
    assert not client.exists(*(TrackerKeys(gone)[name] for name in TRACKER_KEYS))
    with pytest.raises(InvalidCall, match="has expired"):
        tracker_store.add(gone, calls("a"))


def test_a_task_id_that_is_called_again_waits_again(tracker_store, tracker):
    tracker_store.add(tracker, calls("a"))
    tracker_store.update([ended(began(tracker, "a", 5, 1), over=True, success=True)])
    tracker_store.add(tracker, calls("a"))
    assert counts(tracker_store, tracker) == Counts(enqueued=1)
    tracker_store.update([began(tracker, "a", 5, 2)])
    assert counts(tracker_store, tracker) == Counts(working=1)


def test_cancelling_ends_what_waits_in_bounded_steps(tracker_store, tracker):
    tracker_store.add(tracker, calls(*map(str, range(STEP + 1)), "runs"))
    run = began(tracker, "runs", 5, 1)
    tracker_store.update([run])
    assert [tracker_store.cancel(tracker) for _ in range(3)] == [STEP, 1, 0]
    assert counts(tracker_store, tracker) == Counts(working=1, failed=STEP + 1)
    assert tracker_store.update([began(tracker, "1", 5, 2)]) == {tracker}, "it shall not run"
    tracker_store.update([ended(run, over=False, success=False, text="boom")])
    tracker_store.update([began(tracker, "runs", 5, 3)])
    assert counts(tracker_store, tracker) == Counts(failed=STEP + 2)
    assert said(tracker_store, tracker, "runs") == [("error", "boom"), ("failed", "cancelled")]


def test_calls_of_a_cancelled_tracker_have_ended(tracker_store, tracker):
    tracker_store.cancel(tracker)
    assert not tracker_store.add(tracker, calls("a"))
    assert counts(tracker_store, tracker) == Counts(failed=1)


def test_its_end_is_heard(tracker_store, tracker):
    with tracker_store.listen(tracker) as listener:
        tracker_store.add(tracker, calls("a"))
        tracker_store.close(tracker)
        assert not listener.wait(0.05)
        tracker_store.update([ended(began(tracker, "a", 5, 1), over=True, success=True)])
        assert listener.wait(20)
    assert tracker_store.view(tracker).done


def test_closing_what_has_ended_is_heard(tracker_store, tracker):
    with tracker_store.listen(tracker) as listener:
        assert not tracker_store.view(tracker).done
        tracker_store.close(tracker)
        assert listener.wait(20)


def test_pages_by_arrival_and_state(tracker_store, tracker):
    tracker_store.add(tracker, calls(*"abcdef"))
    for number, call in enumerate("dba"):
        tracker_store.update([ended(began(tracker, call, 5, number), over=True, success=True)])
    first = page(tracker_store, tracker, limit=4)
    rest = page(tracker_store, tracker, limit=4, after=first.next)
    assert "".join(view.task_id for view in (*first.items, *rest.items)) == "abcdef"
    assert rest.next is None
    assert "".join(view.task_id for view in page(tracker_store, tracker, State.FINISHED).items) == "abd"
    after = None
    texts = []
    for limit in (1, 3, 3):
        some = page(tracker_store, tracker, State.FINISHED, State.ENQUEUED, limit=limit, after=after)
        texts.append("".join(view.task_id for view in some.items))
        after = some.next
    assert (texts, after) == (["a", "bcd", "ef"], None)
    with pytest.raises(InvalidCall, match="expected a cursor"):
        page(tracker_store, tracker, after="x")


def test_only_the_last_messages_are_kept_and_long_ones_are_cut(tracker_store, tracker):
    tracker_store.add(tracker, calls("a"))
    run = began(tracker, "a", 5, 1)
    tracker_store.update([run])
    for number in range(30):
        tracker_store.progress([run], f"{number} " + "é" * 1000, number, None)
    kept = said(tracker_store, tracker)
    assert [int(text.split()[0]) for _, text in kept] == list(range(10, 30))
    assert {len(text.encode()) for _, text in kept} == {1023}


def test_a_tracker_is_kept_while_it_waits_and_for_its_ttl_after(tracker_store, client):
    tracker = tracker_store.open("short", ttl=60)
    keys = [TrackerKeys(tracker)[name] for name in TRACKER_KEYS]
    tracker_store.add(tracker, calls("a"), latest=f"+{100 * DAY}")
    run = began(tracker, "a", 5, 1)
    tracker_store.update([run._replace(text="begins")])
    assert all(client.ttl(key) > 129 * DAY for key in keys), "until what is due last has had its time"
    tracker_store.update([ended(run, over=True, success=True)])
    assert all(50 <= client.ttl(key) <= 60 for key in keys)


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param([{"delay": 100 * DAY}], id="a delay"),
        pytest.param([{"perform_in": time.time() + 100 * DAY}], id="a time"),
        pytest.param([{"perform_in": time.time() + 1}, {"delay": 100 * DAY}], id="a delay beside a time"),
        pytest.param([{"perform_in": time.time() + 100 * DAY}, {"delay": 1}], id="a time beside a delay"),
    ],
)
def test_a_tracker_outlives_its_last_call(tracker_store, tracker, client, jobs):
    latest = latest_due([Call(**{"id": "1", "payload": b"x", **job}) for job in jobs])
    tracker_store.add(tracker, calls("a"), latest)
    assert client.ttl(TrackerKeys(tracker)["tracker"]) > 129 * DAY


def test_trackers_are_listed_latest_first(tracker_store, tracker, client):
    others = [tracker_store.open(f"other {n}", ttl=60) for n in range(3)]
    client.delete(TrackerKeys(others[1])["tracker"])
    first = tracker_store.recent(3, None)
    rest = tracker_store.recent(2, first.next)
    assert [view.name for view in (*first.items, *rest.items)] == ["other 2", "other 0", "import"]
    assert rest.next is None
    assert len(tracker_store.recent(10, None).items) == 3
    for planted in ("x", base64.urlsafe_b64encode(b"nan x").decode()):
        with pytest.raises(InvalidCall, match="expected a cursor"):
            tracker_store.recent(2, planted)


def test_what_was_planted_ends_in_no_error(tracker_store, tracker, client):
    tracker_store.add(tracker, calls("a"))
    keys = TrackerKeys(tracker)
    client.hset(keys["tracked"], "a", b"\xffnonsense")
    client.hset(keys["messages"], "a", b"\xff")
    tracker_store.update([began(tracker, "a", 5, 1)])
    tracker_store.update([ended(began(tracker, "a", 5, 1), over=True, success=False, text="boom")])
    assert said(tracker_store, tracker) == [("error", "boom")]
    assert counts(tracker_store, tracker) == Counts(error=1)


def test_a_full_redis_takes_news(tracker_store, tracker, client):
    tracker_store.add(tracker, calls("a", "b"))
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            tracker_store.add(tracker, calls("c"))
        tracker_store.update([began(tracker, "a", 5, 1)])
        assert tracker_store.cancel(tracker) == 1
    finally:
        client.config_set("maxmemory", 0)
    assert counts(tracker_store, tracker) == Counts(working=1, failed=1)


def test_trouble_with_a_tracker_is_logged_and_holds_up_no_settle(
    store, tracker_store, tracker, client, caplog
):
    push(store, "1", ("x", 1.0))
    lease = take(store)
    claimed = claim(store, lease)
    client.delete(TrackerKeys(tracker)["tracker"])
    client.set(TrackerKeys(tracker)["tracker"], "planted")
    news = ended(began(tracker, "a", 5, 1), over=True, success=True)
    settlement = Settlement("1", claimed.number, Disposition.DONE, news=(news,))
    assert store.settle(ONE, lease, [settlement]).accepted == {"1"}
    assert "the end of some calls of shard orders/0 is unknown: " in caplog.text


def test_news_go_with_the_settle(store, tracker_store, tracker):
    push(store, "1", ("x", 1.0))
    lease = take(store)
    claimed = claim(store, lease)
    tracker_store.add(tracker, calls("a"))
    news = ended(began(tracker, "a", lease.epoch, claimed.number), over=True, success=True)
    store.settle(ONE, lease, [Settlement("1", claimed.number, Disposition.DONE, news=(news,))])
    assert counts(tracker_store, tracker) == Counts(finished=1)


def test_a_tracker_follows_a_call_into_a_shard_that_was_acquired_earlier(store, tracker_store, tracker):
    """Epochs are numbers of one shard: that of the other may be smaller. Claim numbers go on."""
    two = replace(moves.ONE, shards=2)
    job_id = next(name for name in map(str, range(99)) if (shard_of(name, 2), shard_of(name, 3)) == (0, 1))
    tracker_store.add(tracker, [NewCall("call", moves.NAME, job_id, b"x")])
    store.push(two, [Call(job_id, b"x", perform_in=1.0, record=b"call")])
    new = moves.owned(store, two, 1)
    (seen,) = store.observe([ShardRef(moves.NAME, 0)])
    old = store.acquire(two, ShardRef(moves.NAME, 0), "me", seen, new.epoch + 1000)

    def run(queue, lease, over):
        claim = moves.claimed(store, queue, lease)
        run = began(tracker, "call", lease.epoch, claim.jobs[0].claim, lease.shard.index)
        tracker_store.update([run])
        assert counts(tracker_store, tracker) == Counts(working=1)
        end = ended(run, over, success=over, text="boom")
        tracker_store.update([end])
        if over:
            moves.ended(store, queue, lease, claim)
        else:
            again = {"retry_count": 0, "delay": 0.0, "error": b"boom"}
            moves.ended(store, queue, lease, claim, Disposition.RETRY, **again)
        return end

    first = run(two, old, over=False)
    run(two, old, over=False)
    run(moves.resharded(store, two, 3), new, over=True)
    tracker_store.update([first])
    assert counts(tracker_store, tracker) == Counts(finished=1)
