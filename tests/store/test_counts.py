"""Tests of ``store/counts.py``."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from celery_lowkiq.rules.errors import InvalidCall, ShardDamaged, StoreError
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, ShardRef
from celery_lowkiq.rules.topology import Kind, Topology
from celery_lowkiq.rules.views import Stats, sum_of_states
from celery_lowkiq.store import registry
from celery_lowkiq.store.actions import DEAD, FAILED
from celery_lowkiq.store.health import read_state
from celery_lowkiq.store.keys import queue_key, shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.records import dump_cursor
from tests.bound import Actions, Pausing, Queries
from tests.store.helpers import ONE, claim, end, push, take

THREE = QueueSpec("three", shards=3, batch_size=1000)


def all_pages(listing, **options):
    items, after = [], None
    while True:
        page = listing(after=after, **options)
        items += page.items
        after = page.next
        if after is None:
            return items


@pytest.fixture
def queries(store):
    return Queries(store.client)


@pytest.fixture
def hundred(store):
    """Ids in random order, five at each time."""
    numbers = list(range(100))
    random.Random(1).shuffle(numbers)
    store.push(THREE, [Call(f"id-{n:02d}", b"x", 1, 1000.0 + n // 5) for n in numbers])


@pytest.fixture
def morgue(store, hundred):
    for shard in range(3):
        lease = take(store, THREE, shard)
        end(store, lease, claim(store, lease, 1000), Disposition.BURY, queue=THREE, error=b"boom")


@pytest.mark.parametrize("limit", [1, 7, 100, 1000])
@pytest.mark.parametrize("reverse", [False, True])
def test_jobs_by_perform_in(queries, hundred, limit, reverse):
    found = [
        (j.perform_in, j.id)
        for j in all_pages(
            lambda **o: queries.jobs(THREE, Listing("perform_in", **o)), limit=limit, reverse=reverse
        )
    ]
    assert found == sorted(found, reverse=reverse)
    assert len(set(found)) == 100


@pytest.mark.parametrize("reverse", [False, True])
def test_minimum_and_maximum_are_included(queries, hundred, reverse):
    options = {"minimum": 1003.0, "maximum": 1005.0, "reverse": reverse, "limit": 4}
    found = all_pages(lambda **o: queries.jobs(THREE, Listing("perform_in", **o)), **options)
    assert sorted({j.perform_in for j in found}) == [1003.0, 1004.0, 1005.0]
    assert len(found) == 15


def test_a_page_goes_on_behind_a_job_that_is_gone(queries, store, hundred):
    page = queries.jobs(THREE, Listing("perform_in", limit=10))
    Actions(store.client).delete(THREE, [page.items[-1].id])
    following = queries.jobs(THREE, Listing("perform_in", limit=10, after=page.next))
    assert (following.items[0].perform_in, following.items[0].id) > (
        page.items[-1].perform_in,
        page.items[-1].id,
    )
    assert len(following.items) == 10


def test_jobs_by_id_prefix(queries, hundred):
    found = all_pages(lambda **o: queries.jobs(THREE, Listing(prefix="id-4", **o)), limit=5)
    assert sorted(j.id for j in found) == [f"id-4{n}" for n in range(10)]
    assert len(all_pages(lambda **o: queries.jobs(THREE, Listing(**o)), limit=10)) == 100


def test_a_prefix_search_over_many_ids_stays_bounded_and_complete(queries, store):
    store.push(THREE, [Call(f"{n}", b"x") for n in range(3000)] + [Call("needle", b"x")])
    found = all_pages(lambda **o: queries.jobs(THREE, Listing(prefix="needle", **o)), limit=10)
    assert {j.id for j in found} == {"needle"}


def test_failed_jobs_by_retry_count(queries, store):
    lease = take(store)
    for count in (2, 0, 1):
        push(store, f"failed-{count}", ("x", 1), perform_in=1.0)
        end(store, lease, claim(store, lease), Disposition.RETRY, retry_count=count, delay=1e6, error=b"boom")
    push(store, "fresh", ("x", 1), perform_in=9e9)
    found = queries.jobs(ONE, Listing("retry_count")).items
    assert [(j.id, j.retry_count, j.error) for j in found] == [(f"failed-{n}", n, b"boom") for n in range(3)]
    assert [j.id for j in queries.jobs(ONE, Listing("retry_count", minimum=1, reverse=True)).items] == [
        "failed-2",
        "failed-1",
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("by", ["id", "updated_at"])
def test_the_morgue_is_sorted(queries, morgue, by, reverse):
    found = all_pages(lambda **o: queries.morgue(THREE, Listing(by, **o)), limit=9, reverse=reverse)
    key = (lambda j: j.id) if by == "id" else (lambda j: (j.updated_at, j.id))
    assert found == sorted(found, key=key, reverse=reverse)
    assert len(found) == 100
    assert found[0].error == b"boom"


@pytest.mark.parametrize("reverse", [False, True])
def test_the_morgue_by_id_prefix(queries, morgue, reverse):
    found = all_pages(
        lambda **o: queries.morgue(THREE, Listing(prefix="id-4", **o)), limit=3, reverse=reverse
    )
    assert [j.id for j in found] == sorted((f"id-4{n}" for n in range(10)), reverse=reverse)


def test_processing_shows_the_first_ten_payloads_of_a_job(queries, store):
    push(store, "1", *((f"{n:02}", float(n)) for n in range(12)))
    claim(store, take(store))
    (job,) = queries.processing(ONE).items
    assert [payload.data for payload in job.payloads] == [b"%02d" % n for n in range(10)]
    assert job.payload_count == 12


def test_processing(queries, store, hundred):
    lease = take(store, THREE, 0)
    claimed = claim(store, lease, 1000)
    found = all_pages(lambda **o: queries.processing(THREE, **o), limit=7)
    assert {j.id for j in found} == {j.id for j in claimed.jobs}
    assert {j.claim for j in found} == {claimed.number}


def test_one_job_may_be_in_three_places(queries, store):
    lease = take(store)
    push(store, "1", ("dead", 1), perform_in=1.0)
    end(store, lease, claim(store, lease), Disposition.BURY, error=b"boom")
    push(store, "1", ("runs", 2), perform_in=1.0)
    claim(store, lease)
    push(store, "1", ("waits", 3))
    found = queries.job(ONE, "1")
    assert [p.data for p in found.waiting.payloads] == [b"waits"]
    assert [p.data for p in found.processing.payloads] == [b"runs"]
    assert [p.data for p in found.dead.payloads] == [b"dead"]
    nowhere = queries.job(ONE, "2")
    assert (nowhere.waiting, nowhere.processing, nowhere.dead) == (None, None, None)


def test_stats(queries, store):
    lease = take(store)
    for job_id in "abcd":
        push(store, job_id, ("x", 1), perform_in=1.0)
    end(store, lease, claim(store, lease, 1))
    end(store, lease, claim(store, lease, 1), Disposition.RETRY, delay=1e6)
    end(store, lease, claim(store, lease, 1), Disposition.BURY)
    claim(store, lease, 1)
    push(store, "e", ("x", 1), perform_in=1.0)
    stats = queries.stats(ONE)
    assert stats.lag > 1e9
    oldest = {"oldest": stats.lag, "oldest_call": stats.lag}
    assert stats == Stats(2, 1, 1, 1, 1, 1, 2, stats.lag, dead=1, due=1, calls=2, **oldest)
    assert queries.stats(QueueSpec("nothing", shards=3)) == Stats()


def test_due_jobs_are_counted_also_those_whose_ids_run(queries, store):
    lease = take(store)
    for job_id in ("a runs", "due"):
        push(store, job_id, ("x", 1), perform_in=1.0)
    claim(store, lease, 1)
    push(store, "a runs", ("y", 2), perform_in=1.0)
    push(store, "urgent", ("x", 1), perform_in=1.0, priority=9)
    for job_id in ("paused", "later"):
        push(store, job_id, ("x", 1), perform_in=9e9 if job_id == "later" else 1.0)
    Pausing(store.client).switch_ids(ONE, ["paused"], paused=True)
    stats = queries.stats(ONE)
    assert (stats.length, stats.due, stats.busy) == (5, 3, 1)


def test_calls_that_merged_are_counted(queries, store):
    push(store, "new", ("a", 1))
    push(store, "new", ("b", 1))
    push(store, "new", ("b", 1))
    store.push(ONE, [Call("bulk", b"x", n) for n in range(3)])
    assert queries.stats(ONE).merged == 2 + 2


def test_each_payload_that_dies_is_counted_also_after_it_left_the_morgue(queries, store):
    lease = take(store)
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    end(store, lease, claim(store, lease), Disposition.DIE)
    end(store, lease, claim(store, lease), Disposition.RETRY)
    actions = Actions(store.client)
    actions.bury(ONE, FAILED, b"", only_failed=True)
    assert actions.delete_dead(ONE, DEAD) == 1
    assert queries.stats(ONE).dead == 2


def test_the_oldest_job_may_wait_behind_a_run_of_its_own_id(queries, store):
    lease = take(store)
    push(store, "1", ("a", 1), perform_in=1.0)
    claim(store, lease)
    push(store, "1", ("b", 2), perform_in=1.0)
    stats = queries.stats(ONE)
    assert stats.lag == 0
    assert stats.oldest > 1e9


def test_a_look_shows_who_has_a_shard(queries, store):
    lease = take(store, THREE, 1, owner="node")
    states = queries.shard_states([THREE, ONE])
    assert [str(state.shard) for state in states] == ["three/0", "three/1", "three/2", "orders/0"]
    assert [state.lease.owner for state in states] == ["", "node", "", ""]
    assert states[1].lease.epoch == lease.epoch
    store.renew([lease])
    assert queries.shard_states([THREE])[1].lease.counter == states[1].lease.counter + 1


def test_a_damaged_shard_hides_no_other_queue(queries, store):
    """O6: a key of another type is told as damage of its shard; counts beside it are read."""
    push(store, "1", ("a", 1))
    store.client.servers.redis.set(shard_keys(ShardRef("three", 1))["due"], "x")
    *of_three, one = queries.shard_states([THREE, ONE])
    assert isinstance(sum_of_states(of_three), ShardDamaged)
    assert one.stats.length == 1
    assert [str(state.shard) for state in of_three if state.damage] == ["three/1"]
    for read in (
        queries.stats,
        queries.shard_stats,
        queries.jobs,
        partial(queries.jobs, listing=Listing("perform_in")),
    ):
        with pytest.raises(ShardDamaged, match=r"shard three/1 .* lowkiq repair three"):
            read(THREE)


def test_a_damaged_key_of_a_queue_hides_no_other_queue(store):
    push(store, "1", ("a", 1))
    store.client.servers.redis.set(queue_key("three"), "x")
    declared = replace(ONE, shards=2)
    assert registry.as_known(store.client, [THREE, declared]) == [THREE, ONE]
    with pytest.raises(StoreError, match="WRONGTYPE"):
        registry.register(store.client, THREE)
    damaged, other = read_state(store.client, [THREE, ONE], Topology(Kind.SERVER, (), 10.0)).queues
    assert f"the key {queue_key('three')} has the wrong type" in damaged.damages[0].text
    assert (other.damages, other.stats.length) == ((), 1)


def test_lag_counts_only_what_may_be_claimed(queries, store):
    lease = take(store)
    push(store, "1", ("a", 1), perform_in=1.0)
    claim(store, lease)
    push(store, "1", ("b", 2), perform_in=1.0)
    assert queries.stats(ONE).lag == 0
    push(store, "later", ("b", 2), perform_in=9e9)
    assert queries.stats(ONE).lag == 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"by": "name"}, "by='name' is not a listing"),
        ({"by": "id", "reverse": True}, "has no order"),
        ({"by": "id", "failure": "a"}, "has no order"),
        ({"limit": 0}, "from 1 to 1000"),
        ({"limit": 1001}, "from 1 to 1000"),
        ({"limit": True}, "from 1 to 1000"),
        ({"payload_limit": 0}, "payload_limit=0"),
        ({"by": "id", "after": "nonsense"}, "expected a cursor"),
        ({"by": "id", "after": dump_cursor(0, b"%d.a" % 2**64)}, "expected a cursor"),
        ({"by": "id", "after": dump_cursor(1e300)}, "expected a cursor"),
        ({"by": "id", "after": dump_cursor(-1)}, "expected a cursor"),
        ({"by": "id", "after": dump_cursor(0.5, b"id")}, "expected a cursor"),
        ({"by": "id", "after": "\u0663.\u0664"}, "expected a cursor"),
        ({"by": "perform_in", "after": "!!!"}, "expected a cursor"),
    ],
)
def test_bad_listings_are_refused(queries, options, message):
    with pytest.raises(InvalidCall, match=message):
        queries.jobs(ONE, Listing(**options))


def test_failed_jobs_without_an_upper_bound(store):
    """O7: how a job is isolated stands in the fraction of its count, which a bound is rounded up to."""
    assert Queries(store.client).jobs(ONE, Listing(by="retry_count", maximum=float("inf"))).items == ()
