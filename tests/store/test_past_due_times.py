"""A due time in the past counts as the time of arrival, so that no job is later than it waits."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.dump_format import Entry, State
from celery_lowkiq.rules.models import Call, Disposition, Payload, Settlement
from celery_lowkiq.rules.policies import AfterFailure
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Pausing
from tests.store.helpers import ONE, claim, ids_of, push, stats, take
from tests.store.shard import Shard
from tests.store.test_dump_load import load

#: The longest that a test may take.
LATE = 300.0


@pytest.fixture
def store(store):
    """That of other tests makes jobs older."""
    return RedisStore(store.client.servers.redis)


@pytest.mark.parametrize("past", [1.0, 0.0, -5.0])
@pytest.mark.parametrize("priority", [None, 3])
@pytest.mark.parametrize("policies", [{}, {"debounce": 1e-6}, {"keep": 2}, {"per_run": 1}])
def test_of_a_call(store, past, priority, policies):
    shard = Shard(store, **policies)
    for payload in (b"a", b"b"):
        shard.push("1", payload, perform_in=past, priority=priority)
    found = shard.queries.stats(shard.spec)
    assert found.due == 1
    assert max(found.lag, found.oldest, found.oldest_call) < LATE


def test_of_calls_in_bulk_with_a_paused_id_among_them(store):
    Pausing(store.client).switch_ids(ONE, ["2"], paused=True)
    store.push(ONE, [Call(f"{n}", b"x", perform_in=1.0) for n in range(5)])
    assert stats(store).length == 5
    assert stats(store).oldest < LATE


def test_a_later_call_is_no_sooner_due_than_one_before_it(store):
    """Else jobs with a due time of long ago would pass all others of the shard for ever."""
    push(store, "honest", ("x", 1))
    push(store, "old", ("x", 1), perform_in=1.0)
    assert ids_of(claim(store, take(store), limit=1)) == ["honest"]


def test_a_due_time_in_the_future_stays(store):
    shard = Shard(store)
    shard.push("1", perform_in=9e9)
    assert shard.waiting().perform_in == 9e9


def test_of_a_retry(store):
    """``self.retry(eta=)`` gives any time."""
    shard = Shard(store)
    shard.push("1")
    (job,) = shard.claim()
    retry = Settlement("1", job.claim, Disposition.RETRY, 0, error=b"boom", perform_in=1.0)
    store.settle(shard.spec, shard.lease, [retry])
    assert shard.queries.stats(shard.spec).lag < LATE


def test_of_a_call_that_makes_a_failed_job_due(store):
    shard = Shard(store, when_pushed_after_failure=AfterFailure.NOW)
    shard.push("1")
    shard.run(Disposition.RETRY, retry_count=0, delay=1e6, error=b"boom")
    shard.push("1", perform_in=1.0)
    found = shard.queries.stats(shard.spec)
    assert found.due == 1
    assert found.lag < LATE


@pytest.mark.parametrize("retry_count", [-1, 2])
def test_of_a_dump(store, retry_count):
    entry = Entry(State.WAITING, "1", 1.0, retry_count, b"boom", (Payload(b"a", 1.0),))
    assert load(store, [entry]) == 1
    assert stats(store).length == 1
    assert stats(store).lag < LATE
