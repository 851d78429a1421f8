"""Counts of waiting calls: all of them, the oldest, and the ids with the most."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Call, Disposition, QueueSpec
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.rules.views import IdCalls
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.repairs import Repairs
from tests.bound import Actions
from tests.store.helpers import ONE, SHARD, claim, end, push, stats, take
from tests.store.shard import Shard

META = shard_keys(SHARD)["meta"]


def push_calls(store, job_id, count, queue=ONE):
    store.push(queue, [Call(job_id, b"%d" % n) for n in range(count)])


def test_a_large_backlog_of_one_id_is_seen(store):
    """Its id runs, so that the shard has no lag."""
    queue = QueueSpec("orders", shards=1, policies=Policies(per_run=1))
    lease = take(store, queue)
    push_calls(store, "42", 2000, queue)
    push_calls(store, "7", 3, queue)
    (first,) = store.claim(queue, lease, 1).jobs[:1]
    assert first.id == "42"
    found = stats(store)
    assert (found.length, found.calls) == (2, 2002)
    assert found.busiest == (IdCalls("orders", "42", 1999),)
    assert found.backlog == found.busiest


def test_the_oldest_call_is_that_of_the_id_that_ran_long_after_its_arrival(store, client):
    """A run of one of its calls makes the job of the others due anew."""
    queue = QueueSpec("orders", shards=1, batch_size=1, policies=Policies(per_run=1))
    lease = take(store, queue)
    push_calls(store, "42", 100, queue)
    arrived = float(client.zscore(shard_keys(SHARD)["due"], "42"))
    claimed = store.claim(queue, lease, 1)
    end(store, lease, claimed, queue=queue)
    begun = float(client.zscore(shard_keys(SHARD)["due"], "42"))
    assert begun > arrived
    found = stats(store)
    assert found.oldest_call >= found.oldest + 0.9 * (begun - arrived)


def test_the_oldest_call_of_ids_with_few_calls_is_that_of_the_job_that_is_due_for_longest(store):
    push(store, "1", ("a", 1), ("b", 2))
    found = stats(store)
    assert found.oldest_call == found.oldest > 0
    assert found.busiest == ()


def test_a_call_that_waits_for_its_time_is_not_old(store):
    store.push(ONE, [Call("42", b"%d" % n, delay=1000) for n in range(100)])
    assert (stats(store).calls, stats(store).oldest_call) == (100, 0)


def test_a_score_of_the_caller_is_no_time(store):
    store.push(ONE, [Call("42", b"%d" % n, float(n)) for n in range(100)])
    assert 0 < stats(store).oldest_call < 1000


def test_the_busiest_ids_of_all_shards_come_first(store):
    queue = QueueSpec("orders", shards=3)
    for n in range(12):
        push_calls(store, f"id-{n}", 65 + n, queue)
    assert [found.calls for found in stats(store, queue).busiest] == [76, 75, 74, 73, 72]
    assert stats(store, queue).calls == sum(range(65, 77))


@pytest.mark.parametrize("place", ["a", "m", "zz"])
def test_an_id_with_a_sixteenth_of_a_shard_is_found_among_any_number(store, place):
    """Wherever it lies among the others."""
    for n in range(30):
        push_calls(store, f"k{n:03}", 70)
    push_calls(store, place, 150)
    assert stats(store).busiest[0] == IdCalls("orders", place, 150)


def test_equal_payloads_are_one_call(store):
    push(store, "1", ("a", 1), ("a", 2), ("b", 3))
    assert stats(store).calls == 2


@pytest.mark.parametrize("sizes", [(3,), (70,), (3, 70)])
@pytest.mark.parametrize("action", ["delete", "bury"])
def test_what_leaves_the_queue_is_counted_no_more(store, action, sizes):
    lease = take(store)
    for n, size in enumerate(sizes):
        push_calls(store, f"{n}", size)
    push_calls(store, "stays", 2)
    ids = [f"{n}" for n in range(len(sizes))]
    Actions(store.client).delete(ONE, ids) if action == "delete" else Actions(store.client).bury(
        ONE, ids, b"reason"
    )
    assert stats(store).calls == 2
    if action == "bury":
        Actions(store.client).requeue(ONE, ids)
        assert stats(store).calls == 2 + sum(sizes)
    assert claim(store, lease).jobs
    assert stats(store).calls == 0


def test_a_failed_job_is_counted_again(store):
    lease = take(store)
    push_calls(store, "1", 3)
    claimed = claim(store, lease)
    assert stats(store).calls == 0
    end(store, lease, claimed, Disposition.RETRY, delay=1e6)
    assert stats(store).calls == 3


def test_a_repair_counts(store, client):
    push_calls(store, "few", 3)
    push_calls(store, "many", 70)
    client.hset(META, "extra", 1000)
    Repairs(store.client).mend(ONE, SHARD)
    assert stats(store).calls == 73


def test_calls_of_a_shard_that_has_lost_meta_are_counted(store, client):
    push_calls(store, "few", 3)
    push_calls(store, "many", 70)
    client.delete(META)
    push_calls(store, "few", 1)
    assert stats(store).calls == 73


@pytest.mark.parametrize("per_run", [None, 1])
@pytest.mark.parametrize("priority", [None, 3])
def test_merged_calls_are_saved_runs(store, per_run, priority):
    """A payload that runs alone saves no run, unless the job has an equal one."""
    shard = Shard(store, per_run=per_run)
    for payload in (b"a", b"b", b"b", b"c"):
        shard.push("1", payload, priority=priority)
    shard.store.push(shard.spec, [Call("2", b"%d" % (n % 100), priority=priority) for n in range(200)])
    runs = 0
    while jobs := shard.run():
        runs += len(jobs)
    assert runs == (3 + 100 if per_run else 2)
    assert shard.queries.stats(shard.spec).merged == 204 - runs
