"""Which ids a listing shows: a page of an index that each shard of a queue has for itself."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.cursors import dump_position, dump_scan, load_position, load_scan
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import number_text, pairs
from celery_lowkiq.store.scripts.script import Call, load

#: Where the jobs of a listing by id are found.
_SCANNED = ("due", "ranked", "held")


@dataclass(frozen=True)
class Member:
    """An entry of a sorted index."""

    score: float
    id: bytes
    shard: ShardRef


@dataclass(frozen=True)
class Window:
    """Which part of an index a page shows."""

    limit: int
    after: str | None
    minimum: float | None = None
    maximum: float | None = None
    prefix: bytes = b""
    reverse: bool = False

    def call(self, shard: ShardRef, index: str) -> Call:
        """What asks for one shard's part."""
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


class Members:
    """Pages of members. Every method may raise StoreError, and InvalidCall for what is no cursor."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def page(
        self, queue: QueueSpec, indexes: Sequence[str], window: Window
    ) -> tuple[list[Member], str | None]:
        """What the window shows of the indexes of all shards together, and where the next page begins."""
        asked = [(shard, index) for shard in queue.shard_refs() for index in indexes]
        replies = self._client.all([window.call(shard, index) for shard, index in asked])
        parts = [
            [Member(float(score), job_id, shard) for job_id, score in pairs(reply)]
            for (shard, _), reply in zip(asked, replies, strict=True)
        ]
        merged = heapq.merge(*parts, key=lambda member: (member.score, member.id), reverse=window.reverse)
        # A job that was held, or held no more, between two replies may be in both.
        found = list(islice((member for member, _ in groupby(merged)), window.limit))
        full = len(found) == window.limit
        return found, dump_position(found[-1].score, found[-1].id) if full else None

    def scan(
        self, queue: QueueSpec, prefix: bytes, limit: int, after: str | None
    ) -> tuple[list[Member], str | None]:
        """Some members whose ids begin with ``prefix``, in no order, and where to go on. Looks at no more
        than some multiple of ``limit`` ids, however few of them match.
        """
        index, cursor = load_scan(after) if after is not None else (0, 0)
        found: dict[bytes, Member] = {}
        budget = 10 * limit
        places = [(shard, name) for shard in queue.shard_refs() for name in _SCANNED]
        while index < len(places) and len(found) < limit and budget > 0:
            shard, name = places[index]
            (reply,) = self._client.commands([("ZSCAN", shard_keys(shard)[name], cursor, "COUNT", limit)])
            cursor, members = int(reply[0]), _scanned(reply[1])
            found |= {
                job_id: Member(score, job_id, shard) for job_id, score in members if job_id.startswith(prefix)
            }
            budget -= max(len(members), 1)
            index += cursor == 0
        return list(found.values()), dump_scan(index, cursor) if index < len(places) else None


def _scanned(reply: Any) -> list[tuple[bytes, float]]:
    """redis-py answers ZSCAN with pairs, or flat, by its version."""
    if reply and isinstance(reply[0], (tuple, list)):
        return [(job_id, float(score)) for job_id, score in reply]
    return [(job_id, float(score)) for job_id, score in pairs(reply)]
