"""``keep``: the payloads of an id with the highest scores stay."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Call, Disposition, Settlement
from celery_lowkiq.rules.policies import AfterFailure
from tests.store.shard import Shard


def test_the_highest_scores_stay(store):
    shard = Shard(store, keep=2)
    for score in (5, 3, 9, 1, 7):
        shard.push("1", b"%d" % score, score)
    assert shard.payloads() == [b"7", b"9"]
    assert shard.dropped == 3


def test_long_payloads_too(store):
    shard = Shard(store, keep=20)
    for score in range(200):
        shard.push("1", b"%03d" % score * 100, score)
    assert [data[:3] for data in shard.payloads()] == [b"%03d" % n for n in range(180, 200)]


def test_a_failed_job_of_which_nothing_stays_leaves_the_waiting_ones_time(store):
    shard = Shard(store, keep=1)
    shard.push("1", b"old", 1)
    (job,) = shard.claim()
    shard.push("1", b"new", 2, perform_in=1000.0)
    settlement = Settlement("1", job.claim, Disposition.RETRY, 3, 9e6, b"boom")
    shard.store.settle(shard.spec, shard.lease, [settlement])
    waiting = shard.waiting()
    assert ([p.data for p in waiting.payloads], waiting.perform_in, waiting.retry_count) == (
        [b"new"],
        1000.0,
        -1,
    )


def test_a_failed_job_of_which_something_stays_has_its_own_time(store):
    shard = Shard(store, keep=1)
    shard.push("1", b"high", 2)
    (job,) = shard.claim()
    shard.push("1", b"low", 1)
    settlement = Settlement("1", job.claim, Disposition.RETRY, 3, 9e6, b"boom")
    shard.store.settle(shard.spec, shard.lease, [settlement])
    assert (shard.payloads(), shard.waiting().retry_count) == ([b"high"], 3)


def test_also_when_it_has_many_payloads(store):
    shard = Shard(store, keep=100)
    for n in range(100):
        shard.push("1", b"old %d" % n, n)
    (job,) = shard.claim()
    for n in range(100):
        shard.push("1", b"new %d" % n, 1000 + n)
    store.settle(shard.spec, shard.lease, [Settlement("1", job.claim, Disposition.RETRY, 3, 9e6, b"boom")])
    assert shard.waiting().retry_count == -1
    assert all(data.startswith(b"new") for data in shard.payloads())


def test_a_call_of_which_nothing_stays_does_not_make_a_job_due(store):
    shard = Shard(store, keep=1, when_pushed_after_failure=AfterFailure.NOW)
    shard.push("1", b"high", 2)
    shard.run(Disposition.RETRY, retry_count=0, delay=1000.0)
    before = shard.waiting().perform_in
    shard.push("1", b"low", 1)
    assert (shard.payloads(), shard.waiting().perform_in) == ([b"high"], before)


def test_recorded_payloads_are_dropped_by_the_run(store):
    shard = Shard(store, keep=1)
    for score in (1, 2, 3):
        store.push(shard.spec, [Call("1", b"%d" % score, score, record=b"a call")])
    (job,) = shard.claim()
    assert ([p.data for p in job.payloads], job.unwanted) == ([b"1", b"2", b"3"], 2)


def push_recorded(shard, size):
    """Twenty calls that somebody hears of, with scores from 0, and two with higher ones."""
    calls = [Call("1", b"%02d" % n * size, n, record=b"a call") for n in range(20)]
    calls += [Call("1", b"y" * size, 50), Call("1", b"z" * size, 51)]
    shard.store.push(shard.spec, calls)


def with_recorded(store, size, **policies):
    shard = Shard(store, keep=2, **policies)
    push_recorded(shard, size)
    return shard


@pytest.mark.parametrize("size", [1, 100])
def test_however_many_are_recorded_of_the_others_so_many_stay(store, size):
    shard = with_recorded(store, size)
    for score in range(100, 150):
        shard.push("1", b"%d" % score * size, score)
        assert shard.waiting().payload_count == 22
    assert shard.payloads()[-2:] == [b"148" * size, b"149" * size]
    (job,) = shard.claim()
    assert (len(job.payloads), job.unwanted, shard.dropped) == (22, 20, 50)


@pytest.mark.parametrize("size", [1, 100])
def test_one_below_recorded_ones_is_dropped_and_makes_nothing_due(store, size):
    shard = with_recorded(store, size, when_pushed_after_failure=AfterFailure.NOW)
    shard.run(Disposition.RETRY, retry_count=0, delay=1000.0)
    before = shard.waiting().perform_in
    shard.push("1", b"low" * size, 7.5)
    waiting = shard.waiting()
    assert (waiting.payload_count, waiting.perform_in, shard.dropped) == (22, before, 1)


@pytest.mark.parametrize("size", [1, 100])
def test_a_recorded_one_that_is_not_kept_makes_nothing_due_either(store, size):
    shard = with_recorded(store, size, when_pushed_after_failure=AfterFailure.NOW)
    shard.run(Disposition.RETRY, retry_count=0, delay=1000.0)
    before = shard.waiting().perform_in
    store.push(shard.spec, [Call("1", b"low" * size, 19.5, record=b"a call")])
    assert (shard.waiting().payload_count, shard.waiting().perform_in) == (23, before)


@pytest.mark.parametrize("size", [1, 100])
def test_a_failed_job_below_recorded_ones_leaves_the_waiting_ones_time(store, size):
    shard = Shard(store, keep=2)
    shard.push("1", b"old" * size, 30)
    (job,) = shard.claim()
    push_recorded(shard, size)
    shard.end(job, Disposition.RETRY, retry_count=3, delay=9e6, error=b"boom")
    assert (shard.waiting().payload_count, shard.waiting().retry_count) == (22, -1)
