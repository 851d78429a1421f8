"""Records of calls: tied to their payloads, handed out with a claim, deleted when their results are there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.errors import NotOwner, StoreError
from celery_lowkiq.rules.models import (
    Call,
    Disposition,
    Merge,
    PayloadRemoval,
    QueueSpec,
    Recorded,
    Settlement,
)
from celery_lowkiq.store.call_records import CallReader, digest
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.push import Sender, push_call
from tests.bound import Actions
from tests.store.helpers import ONE, SHARD, claim, dead, end, push, take, waiting


def call(store, job_id, payload, record, score=None, queue=ONE):
    store.push(queue, [Call(job_id, payload.encode(), score, record=record.encode())])


def told(claimed):
    """Records of each job that came with a claim, by payload."""
    return {
        job.id: sorted((job.payloads[c.payload].data.decode(), c.data.decode()) for c in job.calls.records)
        for job in claimed.jobs
        if job.calls is not None
    }


def read(store, job):
    """The same, as the owner reads them page by page."""
    pages = CallReader(store.client).pages(SHARD, job)
    return sorted((job.payloads[c.payload].data.decode(), c.data.decode()) for page in pages for c in page)


def ordered(store, job):
    """The same, as they come."""
    pages = CallReader(store.client).pages(SHARD, job)
    return [record.data.decode() for page in pages for record in page]


def ended(job):
    return tuple((record.key, record.key) for record in job.calls.records)


def count(store):
    (found,) = store.client.commands([("ZCARD", shard_keys(SHARD)["calls"])])
    return found


def test_a_call_without_a_record_touches_no_key_of_calls(store):
    push(store, "1", ("a", 1.0), ("b", 2.0))
    lease = take(store)
    claimed = claim(store, lease)
    assert told(claimed) == {}
    assert [p.recorded for p in claimed.jobs[0].payloads] == [Recorded.NONE] * 2
    end(store, lease, claimed)
    assert count(store) == 0
    assert store.client.commands([("HEXISTS", shard_keys(SHARD)["meta"], "last_call")]) == [0]


def test_a_claim_hands_out_the_calls_of_its_payloads(store):
    call(store, "1", "a", "call 1")
    call(store, "1", "b", "call 2")
    push(store, "2", ("c", 1.0))
    call(store, "3", "d", "call 3")
    claimed = claim(store, take(store))
    assert told(claimed) == {"1": [("a", "call 1"), ("b", "call 2")], "3": [("d", "call 3")]}
    assert all(job.calls.complete for job in claimed.jobs if job.calls)


def test_calls_with_equal_payloads_each_keep_their_record(store):
    call(store, "1", "a", "first")
    call(store, "1", "a", "second")
    claimed = claim(store, take(store))
    assert told(claimed) == {"1": [("a", "first"), ("a", "second")]}
    assert claimed.jobs[0].payloads[0].recorded is Recorded.ALL


@pytest.mark.parametrize("many", [False, True], ids=["packed", "spilled"])
@pytest.mark.parametrize("order", ["recorded first", "recorded last"])
def test_a_payload_knows_that_one_of_its_calls_has_no_record(store, order, many):
    if many:
        push(store, "1", *((f"{n:0100}", float(n)) for n in range(10, 40)))
    if order == "recorded first":
        call(store, "1", "a", "it", 1.0)
    push(store, "1", ("a", 1.0))
    if order == "recorded last":
        call(store, "1", "a", "it", 1.0)
    claimed = claim(store, take(store))
    first, *rest = claimed.jobs[0].payloads
    assert (first.data, first.score, first.recorded) == (b"a", 1.0, Recorded.SOME)
    assert all(payload.recorded is Recorded.NONE for payload in rest)
    assert told(claimed) == {"1": [("a", "it")]}


def test_a_call_that_comes_while_its_equal_is_processed_is_the_next_claims(store):
    lease = take(store)
    call(store, "1", "a", "first")
    claimed = claim(store, lease)
    call(store, "1", "a", "second")
    assert read(store, claimed.jobs[0]._replace(calls=None)) == [("a", "first")]
    settlement = Settlement("1", claimed.number, Disposition.DONE, ended=ended(claimed.jobs[0]))
    store.settle(ONE, lease, [settlement])
    assert told(claim(store, lease)) == {"1": [("a", "second")]}


@pytest.mark.parametrize("disposition", [Disposition.RETRY, Disposition.RETURN])
def test_calls_stay_with_a_job_that_runs_again(store, disposition):
    lease = take(store)
    call(store, "1", "a", "first")
    claimed = claim(store, lease)
    call(store, "1", "b", "second")
    end(store, lease, claimed, disposition)
    again = claim(store, lease)
    assert told(again) == {"1": [("a", "first"), ("b", "second")]}
    assert {payload.recorded for payload in again.jobs[0].payloads} == {Recorded.ALL}


def test_calls_stay_with_a_job_whose_owner_died(store):
    call(store, "1", "a", "it")
    claim(store, take(store, owner="dead"))
    assert told(claim(store, take(store, owner="heir"))) == {"1": [("a", "it")]}


def test_settle_deletes_the_calls_that_have_ended(store):
    lease = take(store)
    call(store, "1", "a", "first")
    call(store, "2", "a", "other")
    one, other = (job for job in claim(store, lease).jobs)
    store.settle(ONE, lease, [Settlement(one.id, one.claim, Disposition.DONE, ended=ended(one))])
    assert count(store) == 1
    assert read(store, other) == [("a", "other")]


def test_only_the_owner_deletes_calls(store):
    call(store, "1", "a", "it")
    lease = take(store)
    (job,) = claim(store, lease).jobs
    take(store, owner="heir")
    with pytest.raises(NotOwner):
        store.settle(ONE, lease, [Settlement("1", job.claim, Disposition.DONE, ended=ended(job))])
    with pytest.raises(NotOwner):
        CallReader(store.client).end(lease, ended(job))
    assert count(store) == 1


def test_a_push_that_is_repeated_stores_its_calls_once(store):
    call(store, "0", "x", "registers the queue")
    sender = Sender()
    command = push_call(ONE, SHARD, sender, [Call("1", b"a", record=b"it")])
    assert [store.client.call(command) for _ in range(2)] == [1, 0]
    assert told(claim(store, take(store)))["1"] == [("a", "it")]


def test_a_claim_that_is_repeated_leaves_its_calls_to_be_read(store):
    lease = take(store)
    call(store, "1", "a", "it")
    store.claim(ONE, lease, 1_000_000)
    (job,) = store.claim(ONE, lease, 1_000_000).jobs
    assert job.calls is None
    assert read(store, job) == [("a", "it")]


def test_a_claim_hands_its_jobs_out_though_their_calls_cannot_be_read(store, client):
    lease = take(store)
    call(store, "1", "a", "it")
    client.delete(shard_keys(SHARD)["calls"])
    client.set(shard_keys(SHARD)["calls"], "planted")
    (job,) = claim(store, lease).jobs
    with pytest.raises(StoreError, match="WRONGTYPE"):
        read(store, job)


def test_many_calls_of_one_payload_are_read_in_bounded_steps(store):
    records = [f"call {n:04}" for n in range(1200)]
    store.push(ONE, [Call("1", b"a", record=record.encode()) for record in records])
    (job,) = claim(store, take(store)).jobs
    assert not job.calls.complete
    pages = list(CallReader(store.client).pages(SHARD, job))
    assert [len(page) for page in pages] == [200] * 6
    assert [c.data.decode() for page in pages for c in page] == records


@pytest.mark.parametrize("size", [1, 100], ids=["packed", "spilled"])
def test_a_claim_hands_out_calls_in_the_order_of_their_payloads(store, size):
    """O2: by score, then by arrival; calls with equal payloads by their numbers."""
    scores = [5, 1, 4, 4, 2, 3, 0, 4]
    for n, score in enumerate(scores * 2):
        call(store, "1", f"{n % 8:0{size}}", f"call {n}", float(score))
    (job,) = claim(store, take(store)).jobs
    by_arrival = [6, 1, 4, 5, 2, 3, 7, 0]
    wanted = [f"call {n}" for first in by_arrival for n in (first, first + 8)]
    assert job.calls.complete
    assert [record.data.decode() for record in job.calls.records] == wanted
    assert ordered(store, job._replace(calls=None)) == wanted


def test_the_calls_of_a_payload_with_many_are_read_before_the_next_payloads(store):
    """O2: whatever number of pages a payload takes."""
    counts = [3, 450, 1, 200, 201, 2]
    names = [[f"call {payload} {n:03}" for n in range(count)] for payload, count in enumerate(counts)]
    for payload, calls in reversed(list(enumerate(names))):
        made = [Call("1", b"%d" % payload, float(payload), record=name.encode()) for name in calls]
        store.push(ONE, made)
    (job,) = claim(store, take(store)).jobs
    assert not job.calls.complete
    assert ordered(store, job) == [name for calls in names for name in calls]


def test_a_call_whose_record_is_replaced_while_pages_are_read_is_read_once(store):
    store.push(ONE, [Call("1", b"a", record=b"%d" % n) for n in range(450)])
    lease = take(store)
    (job,) = claim(store, lease).jobs
    reader, found = CallReader(store.client), []
    for page in reader.pages(SHARD, job):
        found += [record.data for record in page]
        reader.start(lease, [(record, b"started") for record in page])
    assert found == [b"%d" % n for n in range(450)]


def test_a_part_of_a_long_id_brings_the_calls_of_that_part(store):
    payloads = [f"payload {n:04}" for n in range(1100)]
    store.push(ONE, [Call("1", p.encode(), record=p.encode()) for p in payloads])
    lease = take(store)
    (job,) = claim(store, lease).jobs
    assert read(store, job) == [(p, p) for p in payloads[:1000]]
    runs = [(c.key, c.key) for page in CallReader(store.client).pages(SHARD, job) for c in page]
    CallReader(store.client).end(lease, runs[:600])
    store.settle(ONE, lease, [Settlement("1", job.claim, Disposition.DONE, ended=tuple(runs[600:]))])
    (rest,) = claim(store, lease).jobs
    assert read(store, rest) == [(p, p) for p in payloads[1000:]]


def test_a_run_of_keys_ends_the_calls_of_one_payload_at_once(store):
    store.push(ONE, [Call("1", b"a", record=b"%d" % n) for n in range(50)])
    call(store, "1", "b", "other payload")
    lease = take(store)
    (job,) = claim(store, lease).jobs
    keys = [c.key for c in job.calls.records if job.payloads[c.payload].data == b"a"]
    CallReader(store.client).end(lease, [(keys[0], keys[-1])])
    assert count(store) == 1


def test_a_call_that_starts_gets_other_data_and_keeps_its_place(store):
    store.push(ONE, [Call("1", b"a", record=b"%d" % n) for n in range(600)])
    lease = take(store)
    (job,) = claim(store, lease).jobs
    reader = CallReader(store.client)
    records = [record for page in reader.pages(SHARD, job) for record in page]
    for _ in range(2):
        reader.start(lease, [(record, b"started " + record.data) for record in records])
    assert [c.data for page in reader.pages(SHARD, job) for c in page] == [
        b"started %d" % n for n in range(600)
    ]
    reader.end(lease, [(records[0].key, records[-1].key)])
    assert count(store) == 0


def test_a_call_that_has_ended_starts_no_more(store):
    call(store, "1", "a", "it")
    lease = take(store)
    (job,) = claim(store, lease).jobs
    reader = CallReader(store.client)
    reader.end(lease, list(ended(job)))
    reader.start(lease, [(job.calls.records[0], b"started")])
    assert count(store) == 0


def test_only_the_owner_may_say_that_a_call_starts(store):
    call(store, "1", "a", "it")
    (job,) = claim(store, take(store)).jobs
    former = replace(take(store, owner="other"), epoch=1)
    with pytest.raises(NotOwner):
        CallReader(store.client).start(former, [(job.calls.records[0], b"started")])
    assert read(store, job) == [("a", "it")]


def test_a_payload_may_be_dropped_by_a_settle(store):
    push(store, "1", ("a", 1.0), ("b", 2.0), ("c", 3.0))
    lease = take(store)
    claimed = claim(store, lease)
    end(
        store,
        lease,
        claimed,
        Disposition.RETRY,
        bad=(PayloadRemoval(0, None), PayloadRemoval(2, b"unreadable")),
    )
    assert waiting(store, "1") == [("b", 2.0)]
    assert dead(store, "1") == [("c", 3.0)]


def test_what_comes_back_from_the_morgue_has_no_calls(store):
    call(store, "1", "a", "it")
    lease = take(store)
    claimed = claim(store, lease)
    (job,) = claimed.jobs
    store.settle(ONE, lease, [Settlement("1", job.claim, Disposition.DIE, ended=ended(job))])
    Actions(store.client).requeue(ONE, ["1"])
    (again,) = claim(store, lease).jobs
    assert not again.recorded
    assert again.calls is None


def test_a_payload_whose_merge_takes_the_larger_score_keeps_its_calls(store):
    queue = QueueSpec("orders", shards=1, merge=Merge.MAX)
    call(store, "1", "a", "first", 1.0, queue)
    call(store, "1", "a", "second", 5.0, queue)
    claimed = claim(store, take(store))
    assert claimed.jobs[0].payloads[0].score == 5.0
    assert told(claimed) == {"1": [("a", "first"), ("a", "second")]}


def test_bytes_of_any_kind_are_told_apart(store):
    """A digest may hold what elsewhere ends an id."""
    payloads = [next(p for p in map(str, range(100_000)) if digest(p.encode())[n] == 0) for n in range(3)]
    for payload in payloads:
        call(store, "1", payload, payload)
    assert told(claim(store, take(store))) == {"1": sorted((p, p) for p in payloads)}
