"""Reads for people: pages of jobs, one job, counts. Nothing here is on the way of a job."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Job, LeaseState, QueueSpec, ShardRef, Stats, shard_of
from celery_lowkiq.rules.views import DeadJob, Found, Page, PausedId, ShardLook

from .cursors import dump_position, dump_scan, load_position, load_scan
from .keys import ShardKeys, shard_keys
from .records import (
    id_bytes,
    number_text,
    pairs,
    parse_count,
    parse_id,
    parse_payloads,
    parse_processing,
    parse_whole,
    shortened,
)
from .scripts import Call, load
from .store import RedisStore

#: Longest page.
MAX_LIMIT = 1000
#: What a listing reads of one job's payloads, in bytes (at least one payload).
PEEK_BYTES = 256 * 1024
#: More than a payload can have.
WHOLE = 2**31 - 1

_WAITING_INDEXES = {"perform_in": ("due", "held"), "retry_count": ("failed",)}
_MORGUE_INDEXES = {"updated_at": ("dead",), "id": ("dead_ids",)}
#: Where the jobs of a listing by id are found.
_SCANNED = ("due", "held")
WAITING_KEYS = {"index": "due", "held": "held", "failed": "failed", "errors": "errors", "records": "jobs"}
WAITING_KEYS |= {"spill": "spill", "order": "order"}
MORGUE_KEYS = {
    "index": "dead",
    "held": "dead",
    "failed": "dead",
    "errors": "dead_errors",
    "records": "dead_jobs",
}
MORGUE_KEYS |= {"spill": "dead_spill", "order": "dead_order"}


@dataclass(frozen=True)
class Renamed:
    """A shard's keys under the names that a script for several of them uses."""

    keys: ShardKeys
    names: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.keys[self.names.get(name, name)]


@dataclass(frozen=True)
class _Member:
    """An entry of a sorted index."""

    score: float
    id: bytes
    shard: ShardRef


@dataclass(frozen=True)
class _Window:
    """Which part of an index a page shows."""

    minimum: float | None
    maximum: float | None
    prefix: bytes
    reverse: bool
    limit: int
    after: str | None

    def call(self, shard: ShardRef, index: str) -> Call:
        score, job_id, past = self._start()
        return load("page").call(
            {"index": shard_keys(shard)[index]},
            minimum=number_text(-math.inf if self.minimum is None else self.minimum),
            maximum=number_text(math.inf if self.maximum is None else self.maximum),
            after_score=score,
            after_id=job_id,
            past=int(past),
            limit=self.limit,
            reverse=int(self.reverse),
        )

    def _start(self) -> tuple[str, bytes, bool]:
        """Position and whether to begin behind it. No byte of an id is 0xff."""
        if self.after is not None:
            score, job_id = load_position(self.after)
            return number_text(score), job_id, True
        if self.prefix:
            return "0", self.prefix + (b"\xff" if self.reverse else b""), self.reverse
        return "", b"", True


class Queries:
    """Listings of ordered queues. Every method may raise StoreError."""

    def __init__(self, store: RedisStore) -> None:
        self._client = store.client

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
        payload_bytes: int = WHOLE,
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
            found, cursor = self._scan(queue, id_bytes(prefix), limit, after)
        else:
            indexes = _indexes(by, _WAITING_INDEXES, prefix)
            found, cursor = self._members(
                queue, indexes, _Window(minimum, maximum, b"", reverse, limit, after)
            )
        return Page(tuple(job for job in self._peek(found, payload_limit, payload_bytes) if job), cursor)

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
        payload_bytes: int = WHOLE,
    ) -> Page[DeadJob]:
        """A page of dead jobs, sorted by id (which begin with ``prefix``) or by ``updated_at``
        (between ``minimum`` and ``maximum``). Raises InvalidCall.
        """
        check_limits(limit=limit, payload_limit=payload_limit)
        start = id_bytes(prefix)
        if by == "id" and (minimum is not None or maximum is not None):
            raise InvalidCall("minimum and maximum go with by='updated_at'")
        indexes = _indexes(by, _MORGUE_INDEXES, "" if by == "id" else prefix)
        found, cursor = self._members(queue, indexes, _Window(minimum, maximum, start, reverse, limit, after))
        within = [member for member in found if member.id.startswith(start)]
        dead = tuple(job for job in self._peek_dead(within, payload_limit, payload_bytes) if job)
        return Page(dead, cursor if len(within) == len(found) else None)

    def processing(
        self,
        queue: QueueSpec,
        *,
        limit: int = 100,
        after: str | None = None,
        payload_limit: int = 10,
        payload_bytes: int = WHOLE,
    ) -> Page[Job]:
        """A page of the jobs that are claimed and not settled, oldest claim of a shard first."""
        check_limits(limit=limit, payload_limit=payload_limit)
        found, cursor = self._members(queue, ("claimed",), _Window(None, None, b"", False, limit, after))
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
        member = _Member(0.0, id_bytes(job_id), ShardRef(queue.name, shard_of(job_id, queue.shards)))
        (waiting,) = self._peek([member], payload_limit, payload_bytes)
        (dead,) = self._peek_dead([member], payload_limit, payload_bytes)
        (record,) = self._client.commands([("HGET", shard_keys(member.shard)["processing"], member.id)])
        running = parse_processing(member.id, record) if record else None
        processing = shortened(running, payload_limit, payload_bytes) if running else None
        return Found(waiting, processing, dead)

    # -- counts

    def stats(self, queue: QueueSpec) -> Stats:
        """Counts of a queue; its lag is the largest of its shards."""
        return sum(self.shard_stats(queue), Stats())

    def stats_of(self, queues: Sequence[QueueSpec]) -> list[Stats]:
        """Counts of several queues, in one round trip."""
        shards = iter(look.stats for look in self.looks(queues))
        return [sum(islice(shards, queue.shards), Stats()) for queue in queues]

    def shard_stats(self, queue: QueueSpec) -> list[Stats]:
        """Counts of each shard, in one round trip."""
        return [look.stats for look in self.looks([queue])]

    def looks(self, queues: Iterable[QueueSpec]) -> list[ShardLook]:
        """All shards of the queues, in one round trip."""
        shards = [shard for queue in queues for shard in queue.shard_refs()]
        replies = self._client.all([load("stats").call(shard_keys(shard)) for shard in shards])
        return [
            ShardLook(shard, _stats(counts), _lease(*lease))
            for shard, (*counts, lease) in zip(shards, replies, strict=True)
        ]

    # -- ids

    def paused_ids(self, queue: QueueSpec, *, limit: int = 100, after: str | None = None) -> Page[PausedId]:
        """A page of the ids that are paused, those first that are for longest. Raises InvalidCall."""
        check_limits(limit=limit)
        found, cursor = self._members(queue, ("paused",), _Window(None, None, b"", False, limit, after))
        return Page(tuple(PausedId(parse_id(member.id), member.score) for member in found), cursor)

    def members(
        self, queue: QueueSpec, index: str, limit: int, after: str | None
    ) -> tuple[list[str], str | None]:
        """Ids of one of a shard's sorted sets, a page at a time; for actions on all of them."""
        found, cursor = self._members(queue, (index,), _Window(None, None, b"", False, limit, after))
        return [parse_id(member.id) for member in found], cursor

    def _members(
        self, queue: QueueSpec, indexes: Sequence[str], window: _Window
    ) -> tuple[list[_Member], str | None]:
        asked = [(shard, index) for shard in queue.shard_refs() for index in indexes]
        replies = self._client.all([window.call(shard, index) for shard, index in asked])
        parts = [
            [_Member(float(score), job_id, shard) for job_id, score in pairs(reply)]
            for (shard, _), reply in zip(asked, replies, strict=True)
        ]
        merged = heapq.merge(*parts, key=lambda member: (member.score, member.id), reverse=window.reverse)
        # A job that was held, or held no more, between two replies may be in both.
        found = list(islice((member for member, _ in groupby(merged)), window.limit))
        full = len(found) == window.limit
        return found, dump_position(found[-1].score, found[-1].id) if full else None

    def _scan(
        self, queue: QueueSpec, prefix: bytes, limit: int, after: str | None
    ) -> tuple[list[_Member], str | None]:
        """Looks at no more than some multiple of ``limit`` ids, however few of them match."""
        index, cursor = load_scan(after) if after is not None else (0, 0)
        found: dict[bytes, _Member] = {}
        budget = 10 * limit
        places = [(shard, name) for shard in queue.shard_refs() for name in _SCANNED]
        while index < len(places) and len(found) < limit and budget > 0:
            shard, name = places[index]
            (reply,) = self._client.commands([("ZSCAN", shard_keys(shard)[name], cursor, "COUNT", limit)])
            cursor, members = int(reply[0]), _scanned(reply[1])
            found |= {
                job_id: _Member(score, job_id, shard)
                for job_id, score in members
                if job_id.startswith(prefix)
            }
            budget -= max(len(members), 1)
            index += cursor == 0
        return list(found.values()), dump_scan(index, cursor) if index < len(places) else None

    # -- payloads

    def _peek(self, members: Iterable[_Member], payload_limit: int, cut: int) -> list[Job | None]:
        found = list(members)
        replies = self._read_jobs(found, WAITING_KEYS, payload_limit, cut)
        return [_job(member, reply) for member, reply in zip(found, replies, strict=True)]

    def _peek_dead(self, members: Iterable[_Member], payload_limit: int, cut: int) -> list[DeadJob | None]:
        found = list(members)
        replies = self._read_jobs(found, MORGUE_KEYS, payload_limit, cut)
        return [_dead_job(member, reply) for member, reply in zip(found, replies, strict=True)]

    def _read_jobs(
        self, members: list[_Member], names: dict[str, str], payload_limit: int, cut: int
    ) -> list[list[Any]]:
        calls = [
            load("peek").call(
                Renamed(shard_keys(member.shard), names),
                [member.id],
                limit=payload_limit,
                max_bytes=PEEK_BYTES,
                cut=cut,
            )
            for member in members
        ]
        return [reply[0] for reply in self._client.all(calls)]


def _scanned(reply: Any) -> list[tuple[bytes, float]]:
    """redis-py answers ZSCAN with pairs, or flat, by its version."""
    if reply and isinstance(reply[0], (tuple, list)):
        return [(job_id, float(score)) for job_id, score in reply]
    return [(job_id, float(score)) for job_id, score in pairs(reply)]


def _indexes(by: str, indexes: Mapping[str, tuple[str, ...]], prefix: str) -> tuple[str, ...]:
    if by not in indexes:
        raise InvalidCall(f"by={by!r} is not a listing: allowed are {', '.join(sorted({'id', *indexes}))}")
    if prefix:
        raise InvalidCall(f"prefix={prefix!r} goes with by='id', not with by={by!r}")
    return indexes[by]


def check_limits(**limits: int) -> None:
    """Raises InvalidCall for a length of a page that is not allowed."""
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LIMIT:
            raise InvalidCall(f"{name}={value!r}: a whole number from 1 to {MAX_LIMIT} is allowed")


def _job(member: _Member, reply: list[Any]) -> Job | None:
    perform_in, retry_count, error, count, held, *payloads = reply
    if not perform_in:
        return None
    return Job(
        id=parse_id(member.id),
        payloads=parse_payloads(payloads),
        perform_in=float(perform_in),
        retry_count=parse_count(retry_count),
        error=error or None,
        payload_count=count,
        held=bool(held),
    )


def _dead_job(member: _Member, reply: list[Any]) -> DeadJob | None:
    updated_at, _, error, count, _, *payloads = reply
    if not updated_at:
        return None
    return DeadJob(parse_id(member.id), parse_payloads(payloads), float(updated_at), error or None, count)


def _stats(reply: list[Any]) -> Stats:
    now, next_due, length, retries, morgue_length, busy, processed, failed, *rest = reply
    merged, dead, oldest, held, paused, dropped = rest
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
        held=held,
        paused=paused,
        dropped=dropped,
    )


def _lease(owner: bytes | None, epoch: bytes | None, counter: bytes | None) -> LeaseState:
    return LeaseState(parse_id(owner or b""), parse_whole(epoch or b""), parse_whole(counter or b""))


def _age(now: bytes, since: bytes) -> float:
    """In s; 0 for what is to come, and for nothing."""
    return max(0.0, float(now) - float(since)) if since else 0.0
