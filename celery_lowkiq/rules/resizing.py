"""What changes for a node when a queue is stored with another number of shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .layout import Layout
from .models import QueueSpec, ShardRef
from .reports import NodeReport


@dataclass(frozen=True)
class Resize:
    """A queue as it is stored now, and the shards to add to those of the node and to remove from them."""

    queue: QueueSpec
    added: tuple[ShardRef, ...]
    removed: tuple[ShardRef, ...]


def resize(queue: QueueSpec, route: str) -> Resize | None:
    """Return what a stored route changes for a node that serves ``queue``; None for no change.

    So does a route that is missing or foreign. It may be followed by a space and the phase of a migration.
    """
    layout = Layout.parse(route.partition(" ")[0])
    if layout is None or layout == queue.layout:
        return None
    stored = queue.with_layout(layout)
    before, after = queue.shard_refs(), stored.shard_refs()
    return Resize(stored, after[len(before) :], before[len(after) :])


def agreed(nodes: Sequence[NodeReport], queue: str) -> int | None:
    """Return the number of shards that the code of all living nodes declares; None if they do not agree."""
    found = {node.declared[queue] for node in nodes if node.alive and queue in node.declared}
    return found.pop() if len(found) == 1 else None


def migrating(routes: Mapping[str, str]) -> list[str]:
    """Return the queues whose route is followed by the phase of a migration."""
    return [queue for queue, route in routes.items() if " " in route]
