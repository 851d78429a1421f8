"""Calls that a push dropped by a policy: somebody may wait for their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_lowkiq.rules.models import NewJob, QueueSpec, ShardRef, StoredRecord
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys

from .call_records import orphaned_records

#: Called with the queue and calls of it whose payloads are gone without a run. Raises nothing.
Dropped = Callable[[QueueSpec, Sequence[StoredRecord]], None]


class DroppedCallReporter:
    """Tells of the calls that a push dropped, in each shard once, however often it is repeated."""

    def __init__(
        self, client: Client, queue: QueueSpec, jobs: Mapping[ShardRef, Sequence[NewJob]], tell: Dropped
    ) -> None:
        self._client = client
        self._queue = queue
        self._jobs = jobs
        self._tell = tell
        self._told: set[ShardRef] = set()

    def hear(self, replies: Sequence[Any]) -> None:
        """Replies of all shards, in the order of the jobs. Raises StoreError."""
        for (shard, jobs), reply in zip(self._jobs.items(), replies, strict=True):
            if isinstance(reply, list) and shard not in self._told:
                self._told.add(shard)
                self._tell_of(shard, jobs, reply)

    def _tell_of(self, shard: ShardRef, jobs: Sequence[NewJob], reply: list[Any]) -> None:
        """Of the push's own calls, by their positions, and of those of jobs that gave way."""
        positions, *evicted = reply
        own = [jobs[int(position)].record for position in positions.split()]
        if records := tuple(StoredRecord(b"", -1, record) for record in own if record is not None):
            self._tell(self._queue, records)
        for calls in orphaned_records(self._client, shard, evicted):
            self._tell(self._queue, calls)
            members = (call.key + call.data for call in calls)
            self._client.commands([("ZREM", shard_keys(shard)["calls"], *members)])
