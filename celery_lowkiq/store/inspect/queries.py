"""Reads for operators: pages of jobs, one job, counts. Pushes and runs do not use it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from celery_lowkiq.rules.errors import InvalidCall, ShardDamaged
from celery_lowkiq.rules.models import Job, LeaseState, QueueSpec, ShardRef, shard_of
from celery_lowkiq.rules.validators import invalid, is_whole, whole
from celery_lowkiq.rules.views import DeadJob, Found, Page, Paused, PausedId, ShardLook, Stats, sum_of
from celery_lowkiq.store.jobs.claims import CLAIM_BYTES
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.client import raise_refused
from celery_lowkiq.store.scripts.keys import queue_key, shard_keys
from celery_lowkiq.store.scripts.records import id_bytes, parse_id, parse_processing, parse_whole, shortened
from celery_lowkiq.store.scripts.script import load

from .job_reader import JobReader
from .pages import Member, Members, Window

#: Longest page.
MAX_LIMIT = 1000
#: Most bytes of a payload in a listing; only foreign data is longer. A single job is read whole.
LARGEST = CLAIM_BYTES
WHOLE = 2**31 - 1
#: Largest fraction of a stored retry_count, which encodes the isolation of the job.
FRACTION = 0.999999

_WAITING_INDEXES = {"perform_in": ("due", "due_prioritized", "due_paused"), "retry_count": ("failed",)}
_MORGUE_INDEXES = {"updated_at": ("dead",), "id": ("dead_ids",)}


class Queries:
    """Listings of ordered queues. Every method may raise StoreError."""

    def __init__(self, store: RedisStore) -> None:
        self._client = store.client
        self._members = Members(store.client)
        self._job_reader = JobReader(store.client)

    # -- jobs

    def jobs(
        self,
        queue: QueueSpec,
        by: str = "id",
        *,
        prefix: str = "",
        minimum: float | None = None,
        maximum: float | None = None,
        reverse: bool = False,
        limit: int = 100,
        after: str | None = None,
        payload_limit: int = 10,
        payload_bytes: int = LARGEST,
    ) -> Page[Job]:
        """A page of waiting jobs.

        ``by="perform_in"`` and ``by="retry_count"`` (failed jobs only) are sorted, between ``minimum``
        and ``maximum``; ``by="id"`` finds ids that begin with ``prefix``, in no order, and a page may be
        empty or a little longer than ``limit`` while there is a next one. Raises InvalidCall.
        """
        check_limits(limit=limit, payload_limit=payload_limit)
        if by == "id":
            if reverse or minimum is not None or maximum is not None:
                raise InvalidCall(
                    "by='id' has no order: reverse, minimum and maximum go with perform_in or retry_count"
                )
            found, cursor = self._members.scan(queue, id_bytes(prefix), limit, after)
        else:
            indexes = _indexes(by, _WAITING_INDEXES, prefix)
            if by == "retry_count" and maximum is not None and math.isfinite(maximum):
                maximum = math.floor(maximum) + FRACTION
            window = Window(limit, after, minimum, maximum, reverse=reverse)
            found, cursor = self._members.page(queue, indexes, window)
        jobs = self._job_reader.waiting(found, payload_limit, payload_bytes)
        return Page(tuple(job for job in jobs if job), cursor)

    def morgue(
        self,
        queue: QueueSpec,
        by: str = "id",
        *,
        prefix: str = "",
        minimum: float | None = None,
        maximum: float | None = None,
        reverse: bool = False,
        limit: int = 100,
        after: str | None = None,
        payload_limit: int = 10,
        payload_bytes: int = LARGEST,
    ) -> Page[DeadJob]:
        """A page of dead jobs, sorted by id (which begin with ``prefix``) or by ``updated_at``
        (between ``minimum`` and ``maximum``). Raises InvalidCall.
        """
        check_limits(limit=limit, payload_limit=payload_limit)
        start = id_bytes(prefix)
        if by == "id" and (minimum is not None or maximum is not None):
            raise InvalidCall("minimum and maximum go with by='updated_at'")
        indexes = _indexes(by, _MORGUE_INDEXES, "" if by == "id" else prefix)
        window = Window(limit, after, minimum, maximum, start, reverse)
        found, cursor = self._members.page(queue, indexes, window)
        within = [member for member in found if member.id.startswith(start)]
        dead = tuple(job for job in self._job_reader.dead(within, payload_limit, payload_bytes) if job)
        return Page(dead, cursor if len(within) == len(found) else None)

    def processing(
        self,
        queue: QueueSpec,
        *,
        limit: int = 100,
        after: str | None = None,
        payload_limit: int = 10,
        payload_bytes: int = LARGEST,
    ) -> Page[Job]:
        """A page of the jobs that are claimed and not settled, oldest claim of a shard first."""
        check_limits(limit=limit, payload_limit=payload_limit)
        found, cursor = self._members.page(queue, ("claimed",), Window(limit, after))
        records = self._client.commands([("HGET", shard_keys(m.shard)["processing"], m.id) for m in found])
        jobs = (parse_processing(m.id, record) for m, record in zip(found, records, strict=True) if record)
        return Page(tuple(shortened(job, payload_limit, payload_bytes) for job in jobs), cursor)

    def job(
        self,
        queue: QueueSpec,
        job_id: str,
        payload_limit: int = 100,
        payload_bytes: int = WHOLE,
    ) -> Found:
        """Where an id is: waiting, processing, dead, or nowhere."""
        check_limits(limit=1, payload_limit=payload_limit)
        member = Member(0.0, id_bytes(job_id), ShardRef(queue.name, shard_of(job_id, queue.shards)))
        (waiting,) = self._job_reader.waiting([member], payload_limit, payload_bytes)
        (dead,) = self._job_reader.dead([member], payload_limit, payload_bytes)
        (record,) = self._client.commands([("HGET", shard_keys(member.shard)["processing"], member.id)])
        running = parse_processing(member.id, record) if record else None
        processing = shortened(running, payload_limit, payload_bytes) if running else None
        return Found(waiting, processing, dead)

    # -- counts

    def stats(self, queue: QueueSpec) -> Stats:
        """Counts of a queue; its lag is the largest of its shards."""
        return sum(self.shard_stats(queue), Stats())

    def stats_of(self, queues: Sequence[QueueSpec]) -> list[Stats | ShardDamaged]:
        """Counts of several queues, in one round trip; the damage of one that cannot be read, which hides
        none of the others.
        """
        looks = iter(self.looks(queues))
        return [sum_of(list(islice(looks, queue.shards))) for queue in queues]

    def shard_stats(self, queue: QueueSpec) -> list[Stats]:
        """Counts of each shard, in one round trip. Raises ShardDamaged."""
        return [look.stats for look in raise_refused([e.damage or e for e in self.looks([queue])])]

    def looks(self, queues: Iterable[QueueSpec]) -> list[ShardLook]:
        """All shards of the queues, in one round trip; a damaged one with its damage."""
        shards = [shard for queue in queues for shard in queue.shard_refs()]
        calls = [load("stats").call(shard_keys(shard)) for shard in shards]
        replies = self._client.calls(calls) if calls else []
        raise_refused([reply for reply in replies if not isinstance(reply, ShardDamaged)])
        return [_look(shard, reply) for shard, reply in zip(shards, replies, strict=True)]

    # -- ids

    def paused(self, queue: QueueSpec) -> Paused:
        """What is paused, in one round trip."""
        keys = [shard_keys(shard) for shard in queue.shard_refs()]
        (queue_since, *rest) = self._client.commands(
            [
                ("HGET", queue_key(queue.name), "paused"),
                *(("HGET", key["meta"], "paused") for key in keys),
                *(("ZCARD", key["paused"]) for key in keys),
            ]
        )
        times = enumerate(rest[: queue.shards])
        return Paused(
            queue=float(queue_since) if queue_since else None,
            shards={index: float(since) for index, since in times if since},
            ids=sum(rest[queue.shards :]),
        )

    def paused_ids(self, queue: QueueSpec, *, limit: int = 100, after: str | None = None) -> Page[PausedId]:
        """A page of the ids that are paused, the longest paused first. Raises InvalidCall."""
        check_limits(limit=limit)
        found, cursor = self._members.page(queue, ("paused",), Window(limit, after))
        return Page(tuple(PausedId(parse_id(member.id), member.score) for member in found), cursor)


def _indexes(by: str, indexes: Mapping[str, tuple[str, ...]], prefix: str) -> tuple[str, ...]:
    if by not in indexes:
        raise InvalidCall(f"by={by!r} is not a listing: allowed are {', '.join(sorted({'id', *indexes}))}")
    if prefix:
        raise InvalidCall(f"prefix={prefix!r} goes with by='id', not with by={by!r}")
    return indexes[by]


def check_limits(**limits: int) -> None:
    """Raises InvalidCall for an invalid length of a page."""
    for name, value in limits.items():
        if not is_whole(value, 1, MAX_LIMIT):
            raise InvalidCall(invalid(name, value, whole(1, MAX_LIMIT).expected))


def _look(shard: ShardRef, reply: Any) -> ShardLook:
    if isinstance(reply, ShardDamaged):
        return ShardLook(shard, Stats(), LeaseState(), reply)
    *counts, lease = reply
    return ShardLook(shard, _stats(counts), _lease(*lease))


def _stats(reply: list[Any]) -> Stats:
    now, next_due, length, retries, morgue_length, busy, processed, failed, *rest = reply
    merged, dead, oldest, paused_jobs, paused, dropped = rest
    return Stats(
        length=length,
        fresh=length - retries,
        retries=retries,
        morgue_length=morgue_length,
        busy=busy,
        processed=processed,
        failed=failed,
        lag=_age(now, next_due),
        merged=merged,
        dead=dead,
        oldest=_age(now, oldest),
        paused_jobs=paused_jobs,
        paused=paused,
        dropped=dropped,
    )


def _lease(owner: bytes | None, epoch: bytes | None, counter: bytes | None) -> LeaseState:
    return LeaseState(parse_id(owner or b""), parse_whole(epoch or b""), parse_whole(counter or b""))


def _age(now: bytes, since: bytes) -> float:
    """In s; 0 for what is to come, and for nothing."""
    return max(0.0, float(now) - float(since)) if since else 0.0
