"""Short words for what store tests do all the time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

from celery_lowkiq.rules.claims import Claim, OpenClaims, SettleReply
from celery_lowkiq.rules.models import (
    Call,
    Disposition,
    Lease,
    PayloadRemoval,
    QueueSpec,
    Settlement,
    ShardRef,
)
from celery_lowkiq.rules.views import Stats
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Queries

ONE = QueueSpec("orders", shards=1, batch_size=10)
SHARD = ShardRef("orders", 0)
_requests = itertools.count(1)


def push(
    store: RedisStore, job_id: str, *payloads: tuple[str, float], queue: QueueSpec = ONE, **when: float
) -> None:
    store.push(queue, [Call(job_id, data.encode(), score, **when) for data, score in payloads])


def take(store: RedisStore, queue: QueueSpec = ONE, shard: int = 0, owner: str = "me") -> Lease:
    ref = ShardRef(queue.name, shard)
    (seen,) = store.observe([ref])
    return store.acquire(queue, ref, owner, seen, 0)


def claim(store: RedisStore, lease: Lease, limit: int = 10, in_hand: OpenClaims | None = None) -> Claim:
    return store.claim(QueueSpec(lease.shard.queue, batch_size=limit), lease, next(_requests), in_hand)


def end(
    store: RedisStore,
    lease: Lease,
    claimed: Claim,
    disposition: Disposition = Disposition.DONE,
    *,
    queue: QueueSpec = ONE,
    retry_count: int = 0,
    delay: float = 0.0,
    error: bytes = b"",
    bad: tuple[PayloadRemoval, ...] = (),
) -> SettleReply:
    settlements = [
        Settlement(job.id, claimed.number, disposition, retry_count, delay, error, bad)
        for job in claimed.jobs
    ]
    return store.settle(queue, lease, settlements)


def contents(claimed: Claim) -> dict[str, list[tuple[str, float]]]:
    return {job.id: [(p.data.decode(), p.score) for p in job.payloads] for job in claimed.jobs}


def waiting(store: RedisStore, job_id: str, queue: QueueSpec = ONE) -> list[tuple[str, float]] | None:
    job = Queries(store.client).job(queue, job_id).waiting
    return None if job is None else [(p.data.decode(), p.score) for p in job.payloads]


def dead(store: RedisStore, job_id: str, queue: QueueSpec = ONE) -> list[tuple[str, float]] | None:
    job = Queries(store.client).job(queue, job_id).dead
    return None if job is None else [(p.data.decode(), p.score) for p in job.payloads]


def ids_of(claimed: Claim) -> list[str]:
    return [job.id for job in claimed.jobs]


def stats(store: RedisStore, queue: QueueSpec = ONE) -> Stats:
    return Queries(store.client).stats(queue)


@contextlib.contextmanager
def listening(store: RedisStore) -> Iterator[Callable[[], tuple[ShardRef, float | None]]]:
    """A function that waits for the next announcement on queue ``ONE``."""
    subscription = store.subscribe([ONE])

    def heard() -> tuple[ShardRef, float | None]:
        while (announced := subscription.wait_pushed(5)) is None:
            continue
        return announced

    try:
        yield heard
    finally:
        subscription.close()


#: How a key of each type is read.
READ = {
    b"string": lambda commands, key: commands.get(key),
    b"list": lambda commands, key: commands.lrange(key, 0, -1),
    b"hash": lambda commands, key: commands.hgetall(key),
    b"zset": lambda commands, key: commands.zrange(key, 0, -1, withscores=True),
}


def everything(client):
    """Not as dumped: a look may put the fields of a hash in another order."""
    names = list(client.scan_iter())
    with client.pipeline(transaction=False) as commands:
        for name in names:
            commands.type(name)
        types = commands.execute()
        for name, type_ in zip(names, types, strict=True):
            READ[type_](commands, name)
        return dict(zip(names, commands.execute(), strict=True))
