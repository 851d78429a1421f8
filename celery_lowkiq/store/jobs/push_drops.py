"""Reports calls that a policy dropped in a push, so that they get results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_lowkiq.rules.models import NewJob, QueueSpec, ShardRef, StoredRecord
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys

from .call_records import orphaned_records

#: Called with a queue and records of its calls whose payloads were dropped. Must not raise.
Dropped = Callable[[QueueSpec, Sequence[StoredRecord]], None]


class DroppedCallReporter:
    """Reports dropped calls of a push once for each shard, also when the push is repeated."""

    def __init__(
        self, client: Client, queue: QueueSpec, jobs: Mapping[ShardRef, Sequence[NewJob]], report: Dropped
    ) -> None:
        self._client = client
        self._queue = queue
        self._jobs = jobs
        self._report = report
        self._reported: set[ShardRef] = set()

    @staticmethod
    def finds_drops(replies: Sequence[Any]) -> bool:
        """Whether one of the replies names dropped calls."""
        return any(isinstance(reply, list) for reply in replies)

    def read(self, replies: Sequence[Any]) -> None:
        """Read the replies of all shards, in the order of the jobs. Raises StoreError."""
        for (shard, jobs), reply in zip(self._jobs.items(), replies, strict=True):
            if isinstance(reply, list) and shard not in self._reported:
                self._reported.add(shard)
                self._report_drops(shard, jobs, reply)

    def _report_drops(self, shard: ShardRef, jobs: Sequence[NewJob], reply: list[Any]) -> None:
        positions, *evicted = reply
        own = [jobs[int(position)].record for position in positions.split()]
        if records := tuple(StoredRecord(b"", -1, record) for record in own if record is not None):
            self._report(self._queue, records)
        for calls in orphaned_records(self._client, shard, evicted):
            self._report(self._queue, calls)
            members = (call.key + call.data for call in calls)
            self._client.commands([("ZREM", shard_keys(shard)["calls"], *members)])
