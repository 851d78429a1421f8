"""Short words for tests of migrations."""

from __future__ import annotations

import itertools
from dataclasses import replace

from celery_lowkiq.rules.models import Call, Disposition, Layout, QueueSpec, Settlement, ShardRef
from celery_lowkiq.store.keys import queue_key, shard_keys
from celery_lowkiq.store.push import Sender, push_call
from celery_lowkiq.store.resharding import Migrations, Mover
from celery_lowkiq.store.script import load
from tests.store.aging import age, server_time

NAME = "orders"
ONE = QueueSpec(NAME, shards=1, batch_size=100)


def key(name, index=0):
    return shard_keys(ShardRef(NAME, index))[name]


def run(store, name, index=0, rest=(), /, **args):
    return store.client.call(load(name).call(shard_keys(ShardRef(NAME, index)), rest, **args))


def in_migration(queue, shards):
    return replace(queue, shards=shards, former_shards=queue.shards)


def begun(store, queue, shards):
    assert Migrations(store.client, queue.name).begin(shards)
    return Mover(store.client, queue)


def phase(client):
    return (client.hget(queue_key(NAME), "phase") or b"").decode()


def until(client, mover, wanted):
    for _ in range(500):
        if phase(client) == wanted:
            return
        mover.turn()
    raise AssertionError(f"it is in phase {phase(client)}")


def resharded(store, queue, shards):
    """Move the whole queue."""
    until(store.client.servers.redis, begun(store, queue, shards), "idle")
    return replace(queue, shards=shards)


_numbers = itertools.count()


def someone(shards, former=None, home=None):
    """An id whose shard changes, or lies in ``home``."""
    layout = Layout(shards, former)
    return next(
        name
        for name in map("id-{}".format, _numbers)
        if (layout.former_home(name) is not None if home is None else layout.home(name) == home)
    )


def pushed(store, queue, job_id, *payloads, **when):
    """Push on the shard as it is, without following the stored route."""
    jobs = [Call(job_id, payload, **when) for payload in payloads]
    index = queue.layout.home(job_id)
    began = server_time(store.client)
    (reply,) = store.client.calls([push_call(queue, ShardRef(NAME, index), Sender(), jobs)])
    age(store.client, queue, jobs, began)
    return reply


def copies(client, shard):
    """What a replica has of a shard."""
    return {name: client.dump(name) for name in client.scan_iter(f"lowkiq:1:{{{NAME}:{shard}}}:*")}


def take_back(client, shard, former):
    """Let the replica become the master: the lease names the server before."""
    client.delete(*client.scan_iter(f"lowkiq:1:{{{NAME}:{shard}}}:*"))
    for name, data in former.items():
        client.restore(name, 0, data)
    if client.exists(key("lease", shard)):
        client.hset(key("lease", shard), "server", "before")


def owned(store, queue, index):
    shard = ShardRef(NAME, index)
    (seen,) = store.observe([shard])
    return store.acquire(queue, shard, "me", seen, 0)


_requests = itertools.count(1)


def claimed(store, queue, lease):
    return store.claim(queue, lease, next(_requests))


def ended(store, queue, lease, claim, disposition=Disposition.DONE, **settlement):
    store.settle(
        queue, lease, [Settlement(job.id, job.claim, disposition, **settlement) for job in claim.jobs]
    )


def fails(store, queue, lease):
    retry = {"retry_count": 3, "delay": 1e6, "error": b"boom", "try_text": b"boom"}
    ended(store, queue, lease, claimed(store, queue, lease), Disposition.RETRY, **retry)
