"""What a tracker knows of calls whose push was refused, wholly or in part."""

from __future__ import annotations

import pytest

from celery_lowkiq import QueueFull, StoreUnavailable, ordered_task, track
from celery_lowkiq.rules.models import shard_of
from celery_lowkiq.rules.tracking import Counts
from celery_lowkiq.store.push import Pusher

SHARDS = 2
FULL, FREE = ([str(n) for n in range(100) if shard_of(str(n), SHARDS) == shard] for shard in range(SHARDS))


@pytest.fixture
def few(lowkiq_app):
    @ordered_task(app=lowkiq_app, shared=False, name="few", shards=SHARDS, max_length=SHARDS)
    def few(payloads_by_id):
        """Nothing to do."""

    return few


@pytest.fixture
def tracker(lowkiq, few, lowkiq_app):
    """A tracker of three calls; the one in the full shard was refused."""
    few.perform_async([{"id": FULL[0]}])
    tracker = track("in part", lowkiq_app)
    with pytest.raises(QueueFull):
        few.perform_async([{"id": FREE[0]}, {"id": FULL[1]}, {"id": FREE[0], "payload": 2}], tracker=tracker)
    return tracker


def test_only_the_calls_of_the_full_shard_have_failed(lowkiq, tracker):
    assert tracker.counts() == Counts(enqueued=2, failed=1)
    assert not tracker.wait(0)
    ((refused, messages),) = ((call.id, call.messages) for call in tracker.jobs("failed").items)
    assert refused == FULL[1]
    assert messages[0].text.startswith(
        "not pushed: QueueFull: 1 jobs wait in the shard, and the task's max_length allows 1"
    )
    lowkiq.drain()
    assert tracker.counts() == Counts(finished=2, failed=1)


def test_a_cancel_reaches_those_that_were_stored(lowkiq, tracker):
    assert tracker.cancel() == 2
    lowkiq.drain()
    assert tracker.counts() == Counts(failed=3)
    assert {call.messages[-1].text for call in tracker.jobs().items if call.id == FREE[0]} == {"cancelled"}


def test_what_may_have_been_stored_has_failed_until_it_runs(lowkiq, few, lowkiq_app, monkeypatch):
    """All were stored, but perhaps not as durably as asked for."""

    push = Pusher._push

    def unconfirmed(*args):
        push(*args)
        raise StoreUnavailable("not confirmed")

    monkeypatch.setattr(Pusher, "_push", unconfirmed)
    tracker = track("unconfirmed", lowkiq_app)
    with pytest.raises(StoreUnavailable):
        few.perform_async([{"id": FREE[0]}, {"id": FULL[0]}], tracker=tracker)
    assert tracker.counts() == Counts(failed=2)
    lowkiq.drain()
    assert tracker.counts() == Counts(finished=2)
