"""What changes for a node when a queue is stored with another number of shards."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout
from .models import QueueSpec, ShardRef


@dataclass(frozen=True)
class Resize:
    """A queue as it is stored now, and the shards to add to those of the node and to remove from them."""

    queue: QueueSpec
    added: tuple[ShardRef, ...]
    removed: tuple[ShardRef, ...]


def resize(queue: QueueSpec, route: str) -> Resize | None:
    """Return what a stored route changes for a node that serves ``queue``; None for no change.

    So does a route that is missing, or that this version cannot read.
    """
    layout = Layout.parse(route)
    if layout is None or layout == queue.layout:
        return None
    stored = queue.with_layout(layout)
    before, after = queue.shard_refs(), stored.shard_refs()
    return Resize(stored, after[len(before) :], before[len(after) :])
