"""Calls that a push dropped by a policy: somebody may wait for their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_lowkiq.rules.models import CallRecord, NewJob, QueueSpec, ShardRef

from .calls import orphaned_calls
from .client import Client
from .keys import shard_keys

#: Called with the queue and calls of it whose payloads are gone without a run.
Dropped = Callable[[QueueSpec, Sequence[CallRecord]], None]


def tell_dropped(
    client: Client, queue: QueueSpec, shard: ShardRef, jobs: Sequence[NewJob], reply: Any, tell: Dropped
) -> None:
    """Tell of the calls that a push of ``jobs`` dropped: some of its own, and those of jobs that gave way."""
    if not isinstance(reply, list):
        return
    positions, evicted = reply
    own = [jobs[position].record for position in positions]
    if records := tuple(CallRecord(b"", -1, record) for record in own if record is not None):
        tell(queue, records)
    for calls in orphaned_calls(client, shard, evicted):
        tell(queue, calls)
        client.commands([("ZREM", shard_keys(shard)["calls"], *(c.key + c.data for c in calls))])
