"""The number of shards of a queue, which each push and acquire checks.

It is stored in the queue's own key, and each shard has a copy, since a script reads one shard only. The
registry handles scripts that a shard without a copy, or with another number, refuses. The number that the
code declares is that of a new queue: the stored one applies to all others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from celery_lowkiq.rules.errors import (
    FormatMismatch,
    InvalidCall,
    QueueInUse,
    QueueResharded,
    ShardDamaged,
    ShardRepairing,
    StoreError,
)
from celery_lowkiq.rules.layout import MAX_SHARDS, Layout, shard_of
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.repairs import CLOSED, Registered
from celery_lowkiq.rules.validators import invalid, is_whole
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import FORMAT, queue_key, shard_keys
from celery_lowkiq.store.scripts.records import parse_id
from celery_lowkiq.store.scripts.script import load

#: Reply of ``set_shard_count.lua``: another caller has closed the shard.
CLOSED_BY_OTHER = 2
#: Seconds after which the process that closed a shard is considered dead, and the poll interval in s.
CLOSED_SECONDS = 2.0
CLOSED_LOOK = 0.02
#: Page size of paused ids.
PAGE = 1000


class Registry:
    """Registers queues, and reshards empty ones."""

    def __init__(self, client: Client, repairs: Repairs | None = None) -> None:
        self._client = client
        self._repairs = repairs or Repairs(client)

    def open_shards(self, queue: QueueSpec, shards: Sequence[ShardRef]) -> dict[ShardRef, ShardDamaged]:
        """Make shards accept scripts with ``queue.shards``; lost meta is repaired if the rest of the queue
        allows it. Returns the damage of the other shards.

        Raises QueueResharded when another number is stored, FormatMismatch, StoreError.
        """
        deadline = time.monotonic() + CLOSED_SECONDS
        refused: dict[ShardRef, ShardDamaged] = {}
        while shards:
            stored = self._registered(queue)
            if stored.layout != queue.layout:
                raise QueueResharded(queue.name, stored.layout)
            # Another process may be changing the count; after the deadline it is considered dead.
            reopen = time.monotonic() > deadline
            answers = list(zip(shards, self._write(shards, queue.layout.route, stored, reopen), strict=True))
            for shard, reply in answers:
                if not reply and (damaged := self._unrestored(queue, shard, stored)):
                    refused[shard] = damaged
            shards = [shard for shard, reply in answers if reply == CLOSED_BY_OTHER]
            if shards:
                threading.Event().wait(CLOSED_LOOK)
        return refused

    def _unrestored(self, queue: QueueSpec, shard: ShardRef, stored: Registered) -> ShardDamaged | None:
        """Repair the shard's number of shards; return the damage if that is impossible."""
        try:
            if self._repairs.rewrite_meta(queue, shard, stored):
                return None
        except ShardRepairing as error:
            return error
        copy = self._copy(shard)
        says = (
            f"meta says that the queue has {copy.route} shards"
            if copy
            else "meta does not say how many shards"
        )
        reason = f"{says}, its registry says {stored.layout.route}, and the ids in the shard decide nothing"
        return ShardDamaged(shard.queue, shard.index, reason)

    def as_stored(self, queues: Sequence[QueueSpec], lenient: bool = False) -> list[QueueSpec]:
        """Return the queues with their stored numbers of shards, or as declared, in one round trip.

        ``lenient``: as declared also when the key of a queue has the wrong type. Raises StoreError.
        """
        commands = [("HGET", queue_key(queue.name), "shards") for queue in queues]
        found = self._client.readable(commands) if lenient else self._client.commands(commands)
        return [
            queue.with_layout(parse_layout(stored) or queue.layout)
            for queue, stored in zip(queues, found, strict=True)
        ]

    def register(self, queue: QueueSpec, expected: str = "") -> Registered:
        """Write the number of shards if none, or ``expected``, is stored. Returns what is stored then.

        Raises FormatMismatch, StoreError.
        """
        call = load("register").call(
            {"queue": queue_key(queue.name)}, format=FORMAT, shards=queue.layout.route, expected=expected
        )
        stored_format, route, pause, since = (value.decode() for value in self._client.call(call))
        if int(stored_format) != FORMAT:
            raise FormatMismatch(
                f"queue {queue.name!r} is stored in format {stored_format}, this version reads {FORMAT}: "
                "drain it with the version that wrote it"
            )
        layout = Layout.parse(route)
        if layout is None:
            raise StoreError(f"queue {queue.name!r} is stored with {route!r} shards: expected a number")
        return Registered(layout, pause, since)

    def _registered(self, queue: QueueSpec) -> Registered:
        """Register the queue if it is not: a new one as declared, and one whose own key was lost with the
        number that its shards have.
        """
        known, *copies = self._client.commands(
            [
                ("HGET", queue_key(queue.name), "shards"),
                *(("HGET", shard_keys(shard)["meta"], "shards") for shard in queue.shard_refs()),
            ]
        )
        found = set() if known else {parse_layout(copy) for copy in copies} - {None}
        return self.register(queue.with_layout(found.pop() or queue.layout) if len(found) == 1 else queue)

    def reshard(self, queue: QueueSpec) -> None:
        """Change the stored number of shards of an empty queue to ``queue.shards``.

        Closed shards refuse pushes with either number meanwhile. After an error, too, they are reopened with
        the registered number. Raises InvalidCall, QueueInUse, FormatMismatch, StoreError.
        """
        if not is_whole(queue.shards, 1, MAX_SHARDS):
            raise InvalidCall(invalid("shards", queue.shards, f"a whole number from 1 to {MAX_SHARDS}"))
        stored = self.register(queue).layout
        if stored == queue.layout:
            return
        shards = [ShardRef(queue.name, index) for index in range(max(stored.count, queue.shards))]
        try:
            if all(reply == 1 for reply in self._write(shards, CLOSED, self.register(queue), reopen=False)):
                self.register(queue, expected=stored.route)
                _move_paused_ids(self._client, shards, queue.shards)
        finally:
            current = self.register(queue)
            self._write(shards, current.layout.route, current, reopen=True)
        if current.layout != queue.layout:
            raise QueueInUse(queue.name, current.layout.shards, queue.shards)

    def _write(self, shards: Sequence[ShardRef], value: str, known: Registered, reopen: bool) -> list[int]:
        """Write ``value`` into shards. Replies: 1, 0 (it has jobs of another count), CLOSED_BY_OTHER."""
        pause = {"pause": known.pause, "since": known.since}
        calls = [
            load("set_shard_count").call(shard_keys(shard), shards=value, reopen=int(reopen), **pause)
            for shard in shards
        ]
        return [int(reply) for reply in self._client.all(calls)]

    def _copy(self, shard: ShardRef) -> Layout | None:
        (stored,) = self._client.commands([("HGET", shard_keys(shard)["meta"], "shards")])
        return parse_layout(stored)


def parse_layout(stored: bytes | None) -> Layout | None:
    """Parse what a shard or queue stores; None for nothing, and for foreign data."""
    return Layout.parse((stored or b"").decode("latin-1"))


def _move_paused_ids(client: Client, shards: Sequence[ShardRef], count: int) -> None:
    """Move paused ids to their shards when the queue has ``count`` shards."""
    for shard in shards:
        keys = shard_keys(shard)
        for page in client.scan(keys["paused"], PAGE):
            stray = [
                (job_id, since) for job_id, since in page if shard_of(parse_id(job_id), count) != shard.index
            ]
            homes = [ShardRef(shard.queue, shard_of(parse_id(job_id), count)) for job_id, _ in stray]
            client.commands(
                [
                    ("ZADD", shard_keys(home)["paused"], since, job_id)
                    for home, (job_id, since) in zip(homes, stray, strict=True)
                ]
            )
            if stray:
                client.commands([("ZREM", keys["paused"], *(job_id for job_id, _ in stray))])
