"""The number of shards of a queue: stored once, held against by every push and acquire.

The queue's own key has the truth; each shard keeps a copy, since a script sees one shard only. A shard
without a copy, or with another one, sends its caller here.
"""

from __future__ import annotations

from celery_lowkiq.rules.errors import FormatMismatch, ShardCountMismatch, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef

from .client import Client
from .keys import FORMAT, queue_key, shard_keys
from .scripts import Call, load

CLOSED = "closed"


class Registry:
    """Registers queues, and lets an empty one adopt another count."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def admit(self, queue: QueueSpec, shard: ShardRef) -> None:
        """Make the shard take scripts that declare ``queue.shards``.

        Raises ShardCountMismatch when jobs of another count are left, FormatMismatch, StoreError.
        """
        stored = self._register(queue, expected="")
        if stored != queue.shards:
            self._adopt(queue, stored)
        if not self._write([shard], str(queue.shards)):
            raise ShardCountMismatch(queue.name, self._copy(shard) or stored, queue.shards)

    def _register(self, queue: QueueSpec, expected: str) -> int:
        call = load("register").call(
            {"queue": queue_key(queue.name)}, format=FORMAT, shards=queue.shards, expected=expected
        )
        stored_format, stored_shards = (int(value) for value in self._client.call(call))
        if stored_format != FORMAT:
            raise FormatMismatch(
                f"queue {queue.name!r} is stored in format {stored_format}, this version reads {FORMAT}: "
                "drain it with the version that wrote it"
            )
        return stored_shards

    def _adopt(self, queue: QueueSpec, stored: int) -> None:
        """Closing every shard first keeps the pushes of both counts out while the count changes."""
        shards = [ShardRef(queue.name, index) for index in range(max(stored, queue.shards))]
        try:
            closed = self._write(shards, CLOSED)
        except StoreUnavailable:
            self._write(shards, str(stored))
            raise
        if not closed or self._register(queue, expected=str(stored)) != queue.shards:
            self._write(shards, str(stored))
            raise ShardCountMismatch(queue.name, stored, queue.shards)
        self._write(shards, str(queue.shards))

    def _write(self, shards: list[ShardRef], value: str) -> bool:
        """True when all shards took the value; only empty ones do."""
        return all(reply == 1 for reply in self._client.calls([_resize(shard, value) for shard in shards]))

    def _copy(self, shard: ShardRef) -> int:
        (stored,) = self._client.commands([("HGET", shard_keys(shard)["meta"], "shards")])
        return int(stored) if stored and stored.isdigit() else 0


def _resize(shard: ShardRef, value: str) -> Call:
    return load("resize").call(shard_keys(shard), shards=value)
