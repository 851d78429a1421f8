"""``task.ordered_queue`` through the app: decoded payloads, checked arguments, no worker."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from celery_lowkiq import InvalidCall, StoreUnavailable
from tests.worker import proj


@pytest.fixture
def queue(app):
    record = app.tasks["record"]
    record.perform_async([{"id": n, "payload": {"n": n}, "perform_in": 9e9 + n} for n in range(5)])
    return record.ordered_queue


def test_times_may_be_datetimes(app, queue):
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    app.tasks["record"].apply_async(("soon",), eta=soon)
    found = queue.jobs("perform_in", maximum=soon + timedelta(minutes=1)).items
    assert [job.id for job in found] == ["soon"]
    assert found[0].perform_in == pytest.approx(soon.timestamp())


def test_a_countdown_is_added_to_rediss_clock(app, queue):
    app.tasks["record"].apply_async(("later",), countdown=timedelta(hours=1))
    job = queue.job("later").waiting
    assert job.perform_in == pytest.approx(time.time() + 3600, abs=30)


def test_a_purge_of_the_broker_leaves_them_alone(app, queue):
    app.tasks["plain"].delay(1)
    assert app.control.purge() == 1
    assert queue.stats().length == 5


def test_payloads_are_decoded(queue):
    job = queue.job(3).waiting
    assert [(p.value, p.readable) for p in job.payloads] == [({"n": 3}, True)]
    assert (job.payload_count, job.retry_count, job.error) == (1, -1, None)


def test_actions(queue):
    assert queue.delete([0, "1", 99]) == 2
    assert queue.run_now_all() == 3
    assert queue.stats().length == 3


@pytest.mark.parametrize(
    "listing",
    [
        lambda q: q.jobs("perform_in", minimum=float("nan")),
        lambda q: q.jobs("retry_count", maximum="3"),
        lambda q: q.jobs("perform_in", maximum=1700000000000),
        lambda q: q.delete([None]),
        lambda q: q.job(""),
    ],
)
def test_bad_arguments_are_refused(queue, listing):
    with pytest.raises(InvalidCall):
        listing(queue)


def test_nothing_of_a_list_with_a_bad_job_is_stored(app, queue):
    with pytest.raises(InvalidCall, match="job 1 of the list"):
        app.tasks["record"].perform_async([{"id": "new"}, {"id": "new", "payload": {1, 2}}])
    assert queue.job("new").waiting is None


def test_pauses(app, queue):
    assert queue.pause()
    assert not queue.pause()
    assert queue.pause(shard=1)
    assert queue.pause(job_id=3)
    paused = queue.paused()
    assert (paused.queue, list(paused.shards), paused.ids) == (pytest.approx(time.time(), abs=30), [1], 1)
    assert [one.id for one in queue.paused_ids().items] == ["3"]
    assert queue.job(3).waiting.paused
    stats = queue.stats()
    assert (stats.length, stats.paused_jobs, stats.paused) == (5, 1, queue.spec.shards)
    assert [queue.resume(), queue.resume(shard=1), queue.resume(job_id="3")] == [True] * 3
    assert not any([queue.resume(), queue.resume(shard=1), queue.resume(job_id="3")])
    stats = queue.stats()
    assert (stats.length, stats.paused_jobs, stats.paused) == (5, 0, 0)


def test_many_ids_are_paused_and_resumed(queue):
    heard = []
    assert queue.pause_ids((n for n in range(3000)), heard.append) == 3000
    assert heard == sorted(heard)
    assert queue.resume_ids([0, "1", 99, 5000]) == 3
    assert queue.resume_all_ids() == 2997
    assert (queue.paused().ids, queue.stats().paused_jobs, queue.stats().length) == (0, 0, 5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"shard": 8}, "shard=8 is invalid: expected 0 to 7, the shards of 'record'"),
        ({"shard": "0"}, "shard='0'"),
        ({"shard": 0, "job_id": "1"}, "expected one of them, or none"),
        ({"job_id": 1.5}, "expected a str, an int or a UUID"),
    ],
)
def test_what_cannot_be_paused_is_refused(queue, options, message):
    for switch in (queue.pause, queue.resume):
        with pytest.raises(InvalidCall, match=message):
            switch(**options)
    assert queue.stats().paused == 0


def test_calls_return_their_own_ids_and_send_celerys_signals(app, queue):
    from celery.signals import after_task_publish, before_task_publish

    seen = []

    def heard(sender=None, routing_key=None, **_):
        seen.append((sender, routing_key))

    before_task_publish.connect(heard)
    after_task_publish.connect(heard)
    try:
        assert app.tasks["record"].apply_async(("1",), task_id="mine").id == "mine"
    finally:
        before_task_publish.disconnect(heard)
        after_task_publish.disconnect(heard)
    assert seen == [("record", "record")] * 2


def test_a_call_without_redis_says_so():
    lonely = proj.make_app(broker_url="redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        lonely.tasks["record"].delay("1")
    with pytest.raises(StoreUnavailable):
        lonely.tasks["record"].perform_async([{"id": 1}])
