"""Dumping and loading by the store: entries come out as they went in, and go in once."""

from __future__ import annotations

import uuid

import pytest

from celery_lowkiq.rules.dump_format import Entry, Header, State
from celery_lowkiq.rules.errors import QueueResharded
from celery_lowkiq.rules.models import Call, Disposition, Merge, Payload, QueueSpec
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.dump_load import dump_entries, load_entries
from tests.bound import Actions, Pausing, Queries
from tests.store.aging import server_time
from tests.store.helpers import ONE, SHARD, claim, contents, dead, end, listening, push, take, waiting

FAR = 9e9


def header(**fields):
    given = {"dump": uuid.uuid4().hex, "queue": "orders", "shards": 1, "serializer": "json", "last_score": 0}
    return Header(**{**given, **fields})


def entries(store, queue=ONE):
    return list(dump_entries(store, queue))


def load(store, found, queue=ONE, **fields):
    return load_entries(store, queue, header(**fields), list(enumerate(found, 1)))


def job(job_id, *payloads, state=State.WAITING, when=FAR, retry_count=-1, error=None):
    items = tuple(Payload(data.encode(), score) for data, score in payloads)
    return Entry(state, job_id, when, retry_count, error, items)


def test_jobs_come_out_as_they_went_in(store):
    found = [
        job("1", ("a", 1), ("b", 2.5)),
        job("2", ("a", 1), retry_count=3, error=b"boom \xff"),
        job("3", ("a", 1), state=State.DEAD, when=5.5, error=b"gone"),
    ]
    assert load(store, found) == 3
    assert sorted(entries(store), key=lambda entry: entry.id) == found


def test_priorities_move_along_and_the_more_urgent_one_stays(store, client):
    jobs = [Call(f"{n}", b"a", 1.0, FAR, priority=n) for n in (1, 5, 7)]
    store.push(ONE, [*jobs, Call("9", b"a", 1.0, 1.0, priority=9)])
    claim(store, take(store))
    Pausing(store.client).switch_ids(ONE, ["7"], paused=True)
    found = entries(store)
    assert {entry.id: entry.priority for entry in found} == {"1": 1, "5": 5, "7": 7, "9": 9}
    client.flushall()
    store.push(ONE, [Call("1", b"b", 1.0, 5.0, priority=4), Call("5", b"b", 1.0, 5.0)])
    began = server_time(store.client)
    load(store, found)
    known = {job.id: (job.priority, job.perform_in) for job in Queries(store.client).jobs(ONE).items}
    assert known.pop("9") > (9, began), "a due time that has passed is that of the load"
    assert known == {"1": (1, 5.0), "5": (0, 5.0), "7": (7, FAR)}


def test_what_is_processed_is_loaded_as_waiting(store, client):
    push(store, "1", ("a", 1), perform_in=2.0)
    lease = take(store)
    end(store, lease, claim(store, lease), Disposition.RETRY, retry_count=4, error=b"boom")
    Actions(store.client).run_now_all(ONE)
    claim(store, lease)
    (found,) = entries(store)
    assert (found.state, found.retry_count, found.error) == (State.PROCESSING, 4, b"boom")
    client.flushall()
    load(store, [found])
    assert waiting(store, "1") == [("a", 1)]
    assert Queries(store.client).job(ONE, "1").waiting.retry_count == 4


def test_what_is_held_is_dumped_too(store, client):
    store.push(ONE, [Call("1", b"a", 1.0, FAR)])
    Pausing(store.client).switch_ids(ONE, ["1"], paused=True)
    found = entries(store)
    client.flushall()
    Pausing(store.client).switch_ids(ONE, ["1"], paused=True)
    load(store, found)
    assert Queries(store.client).stats(ONE).paused_jobs == 1


def test_a_long_job_comes_in_parts_and_keeps_its_order(store, client):
    store.push(ONE, [Call("1", b"%d" % n, float(n % 3), FAR) for n in range(2500)])
    found = entries(store)
    assert [len(entry.payloads) for entry in found] == [512, 512, 512, 512, 452]
    client.flushall()
    load(store, found)
    again = [payload for entry in entries(store) for payload in entry.payloads]
    assert again == [payload for entry in found for payload in entry.payloads]


def test_a_fresh_job_meets_a_waiting_one_by_rule_2(store):
    push(store, "1", ("a", 5), ("b", 6), perform_in=7.0)
    load(store, [job("1", ("a", 1), ("c", 2), when=9.0)])
    assert waiting(store, "1") == [("a", 1), ("c", 2), ("b", 6)]
    assert Queries(store.client).job(ONE, "1").waiting.perform_in == 7.0


def test_a_failed_job_meets_a_waiting_one_by_rule_3(store):
    push(store, "1", ("b", 6), perform_in=7.0)
    load(store, [job("1", ("a", 1), when=FAR, retry_count=2, error=b"boom")])
    found = Queries(store.client).job(ONE, "1").waiting
    assert (found.perform_in, found.retry_count, found.error) == (FAR, 2, b"boom")


def test_the_task_says_which_score_stays(store):
    queue = QueueSpec("orders", shards=1, merge=Merge.MAX)
    push(store, "1", ("a", 5), queue=queue)
    load(store, [job("1", ("a", 7))], queue)
    assert waiting(store, "1", queue) == [("a", 7)]


def test_of_two_deaths_the_later_one_stays(store):
    load(store, [job("1", ("a", 1), state=State.DEAD, when=20.0, error=b"later")])
    load(store, [job("1", ("b", 2), state=State.DEAD, when=10.0, error=b"earlier")])
    (found,) = entries(store)
    assert (found.when, found.error) == (20.0, b"later")
    assert dead(store, "1") == [("a", 1), ("b", 2)]


def test_lines_are_loaded_once_also_when_they_ran_meanwhile(store):
    known, found = header(), [(n, job(str(n), ("a", 1), when=1.0)) for n in range(1, 4)]
    assert load_entries(store, ONE, known, found[:2]) == 2
    lease = take(store)
    end(store, lease, claim(store, lease))
    assert load_entries(store, ONE, known, found) == 1
    assert contents(claim(store, lease)) == {"3": [("a", 1)]}


def test_another_number_of_shards_is_no_hindrance(store):
    three = QueueSpec("three", shards=3)
    store.push(three, [Call(str(n), b"x", 1.0, FAR) for n in range(50)])
    found = entries(store, three)
    load(store, found, QueueSpec("five", shards=5), shards=3)
    assert Queries(store.client).stats(QueueSpec("five", shards=5)).length == 50


def test_a_queue_that_is_resharded_meanwhile_is_refused(store):
    push(store, "1", ("a", 1))
    with pytest.raises(QueueResharded, match="1 shards"):
        load(store, [job(str(n), ("a", 1)) for n in range(9)], QueueSpec("orders", shards=2))


def test_scores_made_after_a_load_are_larger_than_those_in_it(store, client):
    """The other Redis's clock was ahead."""
    ahead = 4_000_000_000_000_000
    load(store, [job("1", ("old", ahead / 1e6))], last_score=ahead)
    store.push(ONE, [Call("1", b"new")])
    assert [data for data, _ in waiting(store, "1")] == ["old", "new"]


def waiting_since(store):
    return min(job.perform_in for job in Queries(store.client).jobs(ONE).items)


def test_a_load_wakes_a_worker(store):
    push(store, "0", ("a", 1), perform_in=FAR)
    with listening(store) as heard:
        load(store, [job("1", ("a", 1), when=1.0)])
        assert heard() == (SHARD, waiting_since(store))


def test_calls_move_with_their_payloads(store, client):
    for n in range(250):
        store.push(ONE, [Call("1", b"a", 1.0, record=b"call %d" % n), Call("1", b"b", 2.0)])
    found = entries(store)
    assert [(entry.state, len(entry.calls)) for entry in found] == [
        (State.CALLS, 200),
        (State.CALLS, 50),
        (State.WAITING, 0),
    ]
    client.flushall()
    known, numbered = header(), list(enumerate(found, 1))
    assert [load_entries(store, ONE, known, numbered) for _ in range(2)] == [3, 0]
    lease = take(store)
    (claimed,) = claim(store, lease).jobs
    read = [call for page in CallReader(store.client).pages(lease.shard, claimed) for call in page]
    assert sorted((call.payload, call.data) for call in read) == sorted(
        (0, b"call %d" % n) for n in range(250)
    )
