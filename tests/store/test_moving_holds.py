"""Ids that a death holds, and their dead payloads, while a queue is being moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.models import Call, Disposition
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.store import resharding as moving_shards
from celery_lowkiq.store.errors import ShardCountDiffers
from tests.bound import Queries
from tests.store import resharding as words


def _half_moved(store, monkeypatch):
    """A migration from one shard to two, in which only the dead payloads of a held id have left."""
    monkeypatch.setattr(moving_shards, "TRANSFER_PAYLOADS", 3)
    queue = replace(words.ONE, policies=Policies(hold=10_000))
    job_id = words.someone(2, home=1)
    lease = words.owned(store, queue, 0)
    store.push(queue, [Call(job_id, b"dead %d" % n, float(n)) for n in range(3)])
    words.ended(store, queue, lease, words.claimed(store, queue, lease), Disposition.BURY, error=b"boom")
    store.push(queue, [Call(job_id, b"newer %d" % n, 9.0 + n) for n in range(3)])
    mover = words.begun(store, queue, 2)
    words.until(store.client.servers.redis, mover, "move")
    while not store.client.servers.redis.hlen(words.key("dead_jobs", 1)):
        mover.turn()
    assert store.client.servers.redis.hexists(words.key("jobs", 0), job_id)
    return queue, job_id, mover


@pytest.mark.parametrize(
    "verb",
    [
        lambda actions, queue, job_id: actions.requeue(queue, [job_id]),
        lambda actions, queue, job_id: actions.delete_dead(queue, [job_id]),
        lambda actions, queue, job_id: actions.edit_dead(queue, job_id, b"dead 0", None),
    ],
)
def test_an_id_of_which_a_part_has_left_stays_held(store, actions, monkeypatch, verb):
    """An operator's steps began before the migration."""
    queue, job_id, mover = _half_moved(store, monkeypatch)
    with pytest.raises(ShardCountDiffers):
        verb(actions, queue, job_id)
    words.until(store.client.servers.redis, mover, "idle")
    two = replace(queue, shards=2)
    assert [one.id for one in Queries(store.client).held_ids(two).items] == [job_id]
    assert words.claimed(store, two, words.owned(store, two, 1)).jobs == ()
    actions.requeue(two, [job_id])
    (job,) = words.claimed(store, two, words.owned(store, two, 1)).jobs
    texts = [p.data.decode() for p in job.payloads]
    assert texts == ["dead 0", "dead 1", "dead 2", "newer 0", "newer 1", "newer 2"]


def test_a_large_dead_job_is_moved_before_the_waiting_one(store, monkeypatch):
    """The retry count of the waiting one moves with it, and no claim finds the shard damaged."""
    monkeypatch.setattr(moving_shards, "TRANSFER_BYTES", 2500)
    job_id, lease = words.someone(2, home=1), words.owned(store, words.ONE, 0)
    store.push(words.ONE, [Call(job_id, b"%d" % n * 900, float(n)) for n in range(1, 10)])
    words.ended(
        store, words.ONE, lease, words.claimed(store, words.ONE, lease), Disposition.BURY, error=b"boom"
    )
    store.push(words.ONE, [Call(job_id, b"newer", 99.0)])
    words.fails(store, words.ONE, lease)
    mover = words.begun(store, words.ONE, 2)
    while words.phase(store.client.servers.redis) != "idle":
        mover.turn()
        route = store.client.servers.redis.hget(words.key("meta"), "shards")
        if route == b"1>2":
            words.claimed(store, words.ONE, lease)
    found = Queries(store.client).job(replace(words.ONE, shards=2), job_id)
    assert (found.waiting.retry_count, len(found.dead.payloads)) == (3, 9)
