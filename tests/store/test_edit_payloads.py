"""What an operator does to single jobs and payloads; the other payloads of the job stay as they are."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Call, Disposition, Merge, QueueSpec
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.listings import Listing
from tests.bound import Actions, Pausing, Queries
from tests.store.helpers import ONE, SHARD, claim, contents, dead, end, push, take, waiting

#: The packed record of a job, and one that has spilled.
SIZES = {"packed": 3, "spilled": 200}


@pytest.fixture
def actions(store):
    return Actions(store.client)


@pytest.fixture(params=SIZES)
def many(request, store):
    """A job with many payloads of the same score, in the order of their arrival."""
    payloads = [f"payload {n}" for n in range(SIZES[request.param])]
    for payload in payloads:
        push(store, "1", (payload, 5))
    return payloads


def shown(store, job_id="1", queue=ONE):
    """As a claim would hand it out."""
    (job,) = [job for job in claim(store, take(store, queue), 10).jobs if job.id == job_id]
    return [(p.data.decode(), p.score) for p in job.payloads]


def test_one_payload_is_dropped(store, actions, many):
    assert actions.edit(ONE, "1", b"payload 1", None)
    assert shown(store) == [(payload, 5) for payload in many if payload != "payload 1"]


def test_a_payload_is_replaced_at_its_place(store, actions, many):
    assert actions.edit(ONE, "1", b"payload 1", b"another")
    expected = ["another" if payload == "payload 1" else payload for payload in many]
    assert shown(store) == [(payload, 5) for payload in expected]


def test_to_repeat_it_changes_nothing(store, actions, many):
    for other in (b"another", None):
        assert actions.edit(ONE, "1", b"payload 1", other) is (other is not None)
    assert len(shown(store)) == len(many)


@pytest.mark.parametrize("merge, score", [(Merge.MIN, 1), (Merge.MAX, 9)])
@pytest.mark.parametrize("others", [0, 100])
def test_a_payload_that_becomes_an_equal_of_another_is_united_with_it(store, actions, merge, score, others):
    queue = QueueSpec("orders", shards=1, merge=merge)
    push(store, "1", ("a", 1), ("b", 9), *((f"more than a little text {n}", 5) for n in range(others)))
    assert actions.edit(queue, "1", b"a", b"b")
    found = shown(store, queue=queue)
    assert ("b", score) in found
    assert len(found) == 1 + others


def test_without_its_last_payload_the_job_is_gone(store, actions, many):
    for payload in many:
        assert actions.edit(ONE, "1", payload.encode(), None)
    assert Queries(store.client).stats(ONE).length == 0
    left = [
        key
        for key in ("due", "jobs", "spill", "spill_order", "failed", "errors")
        if store.client.servers.redis.exists(shard_keys(SHARD)[key])
    ]
    assert left == []


def test_a_payload_that_grows_spills_its_job(store, actions):
    push(store, "1", ("a", 1), ("b", 2))
    assert actions.edit(ONE, "1", b"a", b"x" * 5000)
    assert shown(store) == [("x" * 5000, 1), ("b", 2)]


@pytest.mark.parametrize("job_id, payload", [("1", b"b"), ("2", b"a")])
def test_what_is_not_there_is_not_changed(store, actions, job_id, payload):
    push(store, "1", ("a", 1))
    assert not actions.edit(ONE, job_id, payload, b"c")
    assert waiting(store, "1") == [("a", 1)]


def test_what_is_processed_stays(store, actions):
    push(store, "1", ("a", 1))
    lease = take(store)
    claimed = claim(store, lease)
    push(store, "1", ("a", 2), ("b", 2))
    assert actions.edit(ONE, "1", b"a", None)
    assert contents(claimed) == {"1": [("a", 1)]}
    assert waiting(store, "1") == [("b", 2)]


def test_a_held_job_is_edited_too(store, actions):
    Pausing(store.client).switch_ids(ONE, ["1"], paused=True)
    push(store, "1", ("a", 1), ("b", 2))
    assert actions.edit(ONE, "1", b"a", b"c")
    assert waiting(store, "1") == [("c", 1), ("b", 2)]
    for payload in (b"b", b"c"):
        assert actions.edit(ONE, "1", payload, None)
    assert Queries(store.client).stats(ONE).paused_jobs == 0


def test_the_calls_of_the_payload_end_and_no_others(store):
    ended = []
    actions = Actions(store.client, lambda calls, dead: ended.append(([call.data for call in calls], dead)))
    jobs = [Call("1", data, score, record=b"call of " + data) for data, score in ((b"a", 1.0), (b"b", 2.0))]
    store.push(ONE, jobs)
    assert actions.edit(ONE, "1", b"a", b"c")
    assert ended == [([b"call of a"], False)]
    assert store.client.servers.redis.zcard(shard_keys(SHARD)["calls"]) == 1


@pytest.mark.parametrize("size", SIZES.values())
def test_the_calls_of_the_payload_may_become_those_of_the_other(store, size):
    ended = []
    actions = Actions(store.client, lambda calls, dead: ended.append(calls))
    names = [b"payload %d" % n for n in range(size)]
    store.push(ONE, [Call("1", name, float(n), record=b"of " + name) for n, name in enumerate(names)])
    assert [actions.edit(ONE, "1", old, b"new", keep_calls=True) for old in (b"none", names[1])] == [
        False,
        True,
    ]
    (job,) = claim(store, take(store)).jobs
    assert ([payload.data for payload in job.payloads][1], ended) == (b"new", [])
    calls = [call for page in CallReader(store.client).pages(SHARD, job) for call in page]
    assert [(call.payload, call.data) for call in calls] == [
        (n, b"of " + name) for n, name in enumerate(names)
    ]


def test_calls_of_a_payload_that_is_processed_do_not_end(store):
    ended = []
    store.push(ONE, [Call("1", b"a", 1.0, record=b"first")])
    claim(store, take(store))
    store.push(ONE, [Call("1", b"a", 1.0, record=b"second")])
    actions = Actions(store.client, lambda calls, dead: ended.extend(call.data for call in calls))
    assert actions.edit(ONE, "1", b"a", None)
    assert ended == [b"second"]


def test_chosen_jobs_are_made_due(store, actions):
    for job_id in ("a", "b", "c"):
        push(store, job_id, ("x", 1), perform_in=9e9)
    assert actions.run_now(ONE, ["a", "c", "unknown"]) == 2
    assert actions.run_now(ONE, ["a"]) == 0
    assert [job.id for job in Queries(store.client).jobs(ONE, Listing("perform_in", minimum=8e9)).items] == [
        "b"
    ]


def test_a_held_job_that_is_made_due_stays_held(store, actions):
    Pausing(store.client).switch_ids(ONE, ["a"], paused=True)
    push(store, "a", ("x", 1), perform_in=9e9)
    assert actions.run_now(ONE, ["a"]) == 1
    assert Queries(store.client).stats(ONE).paused_jobs == 1
    assert claim(store, take(store)).jobs == ()


def test_chosen_jobs_are_buried_with_their_error_or_the_reason(store, actions):
    lease = take(store)
    push(store, "failed", ("x", 1))
    end(store, lease, claim(store, lease), delay=100.0, error=b"boom", disposition=Disposition.RETRY)
    for job_id in ("fresh", "other"):
        push(store, job_id, ("x", 1))
    assert actions.bury(ONE, ["failed", "fresh", "unknown"], b"by hand") == 2
    assert {job.id: job.error for job in Queries(store.client).morgue(ONE).items} == {
        "failed": b"boom",
        "fresh": b"by hand",
    }
    assert waiting(store, "other") == [("x", 1)]
    assert dead(store, "fresh") == [("x", 1)]
