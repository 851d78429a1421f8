"""The way of a job on fakeredis, as in tests of code that calls us; tests/store has the real servers."""

from __future__ import annotations

import fakeredis
import pytest

from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, Settlement
from celery_lowkiq.store.actions import DEAD
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions, Queries

QUEUE = QueueSpec("orders", shards=1, batch_size=10)
(SHARD,) = QUEUE.shard_refs()


@pytest.fixture
def store():
    return RedisStore(fakeredis.FakeRedis())


def take(store, owner="me"):
    (seen,) = store.observe([SHARD])
    return store.acquire(QUEUE, SHARD, owner, seen, 0)


def test_the_way_of_a_job(store):
    store.push(QUEUE, [Call("1", b"b", 2), Call("1", b"a", 1), Call("2", b"c")])
    lease = take(store)
    claim = store.claim(QUEUE, lease, 1)
    assert {job.id: [p.data for p in job.payloads] for job in claim.jobs} == {"1": [b"a", b"b"], "2": [b"c"]}
    settlements = [
        Settlement("1", claim.number, Disposition.DIE, error=b"boom"),
        Settlement("2", claim.number, Disposition.DONE),
    ]
    assert store.settle(QUEUE, lease, settlements).accepted == {"1", "2"}
    assert Queries(store.client).morgue(QUEUE).items[0].payloads[0].data == b"a"
    assert Actions(store.client).requeue(QUEUE, DEAD) == 1
    assert store.renew([lease]) == [lease]
    assert store.release(lease)


def test_a_long_job_spills_and_comes_back_in_order(store):
    store.push(QUEUE, [Call("1", b"%03d" % n + b"x" * 30, float(-n), 1.0) for n in range(200)])
    scores = [p.score for p in store.claim(QUEUE, take(store), 1).jobs[0].payloads]
    assert scores == sorted(scores)
    assert len(scores) == 200


def test_calls(store):
    store.push(QUEUE, [Call("1", b"a", record=b"first"), Call("1", b"a", record=b"second")])
    lease = take(store)
    (job,) = store.claim(QUEUE, lease, 1).jobs
    assert [call.data for call in job.calls.records] == [b"first", b"second"]
    keys = [call.key for call in job.calls.records]
    store.settle(QUEUE, lease, [Settlement("1", job.claim, Disposition.DONE, ended=((keys[0], keys[1]),))])
    assert store.client.servers.redis.zcard(shard_keys(SHARD)["calls"]) == 0


def test_refusals(store):
    store.push(QUEUE, [Call("1", b"a")])
    former = take(store, "former")
    take(store, "heir")
    with pytest.raises(NotOwner):
        store.claim(QUEUE, former, 1)
