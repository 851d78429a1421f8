"""What changes for a node when a queue is stored with another number of shards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .models import MAX_SHARDS, QueueSpec, ShardRef


@dataclass(frozen=True)
class Resize:
    """A queue as it is stored now, and the shards to add to those of the node and to remove from them."""

    queue: QueueSpec
    added: tuple[ShardRef, ...]
    removed: tuple[ShardRef, ...]


def resize(queue: QueueSpec, route: str) -> Resize | None:
    """Return what a stored number of shards changes for a node that serves ``queue``; None for no change.

    So does a number that is missing, or that this version cannot read.
    """
    if not (route.isdecimal() and len(route) < 10 and 0 < int(route) <= MAX_SHARDS):
        return None
    stored = replace(queue, shards=int(route))
    if stored == queue:
        return None
    before, after = queue.shard_refs(), stored.shard_refs()
    return Resize(stored, after[len(before) :], before[len(after) :])
