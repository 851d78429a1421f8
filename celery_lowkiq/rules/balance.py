"""Distribution of shards over nodes and lanes: quotas, and which lane gets the next shard.

Nodes do not talk to each other. Each node sees which nodes are alive and computes the same quotas from that.
It gives up shards beyond its quota, takes free shards up to it, and keeps the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .models import ShardRef

#: Lease times without a heartbeat, half a turn and one and a half, after which it is late, and silent.
LATE_LEASES = 0.1
SILENT_LEASES = 0.3
#: Lease times without a heartbeat after which a node no longer counts for quotas.
NODE_TIMEOUT_LEASES = 1.05
#: Lease times after which any node takes a free shard, whatever its quota.
ORPHAN_TIMEOUT_LEASES = 3.0


@dataclass(frozen=True)
class Member:
    """A node's heartbeat as another node observed it. The node counts once its heartbeat has moved."""

    name: str
    lanes: int
    #: Number of its last turn. Nodes of earlier versions count heartbeats, and write no turn into leases.
    turn: int
    #: Monotonic time at which this turn was first seen.
    since: float
    moved: bool = False

    def observed(self, turn: int, now: float) -> Member:
        """Return the member updated by a newly read turn."""
        if turn == self.turn:
            return self
        return replace(self, turn=turn, since=now, moved=True)

    def late(self, now: float, lease_seconds: float) -> bool:
        """Whether the heartbeat of this turn is missing: it may just come a little later than ours."""
        return now >= self.since + LATE_LEASES * lease_seconds

    def silent(self, now: float, lease_seconds: float) -> bool:
        """Whether heartbeats are missing."""
        return now >= self.since + SILENT_LEASES * lease_seconds

    def alive(self, now: float, lease_seconds: float) -> bool:
        """Whether the node counts for quotas."""
        return self.moved and now < self.since + NODE_TIMEOUT_LEASES * lease_seconds

    def gone(self, now: float, lease_seconds: float) -> bool:
        """Whether the node's heartbeat may be deleted."""
        return now >= self.since + ORPHAN_TIMEOUT_LEASES * lease_seconds


def quotas(shards: int, lanes: Mapping[str, int]) -> dict[str, int]:
    """Return the number of shards of each node, in proportion to its lanes; the sum is ``shards``.

    Numbers are rounded by largest remainders, ties by name, so that every node computes the same.
    """
    total = sum(lanes.values())
    exact = {name: shards * count / total for name, count in lanes.items()}
    rounded = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(lanes, key=lambda name: (rounded[name] - exact[name], name))
    for name in by_remainder[: shards - sum(rounded.values())]:
        rounded[name] += 1
    return rounded


class QuotaRoom:
    """The number of shards that a node may still take. Queues served by the same nodes share one quota."""

    def __init__(self, pools: Sequence[tuple[frozenset[str], int]], owned: Sequence[ShardRef]) -> None:
        """``pools``: groups of queues with the node's quota for each; ``owned``: the shards it owns."""
        self._pool_of = {queue: number for number, (queues, _) in enumerate(pools) for queue in queues}
        self._remaining = [quota for _, quota in pools]
        for shard in owned:
            self.fill(shard.queue)

    def left(self, queue: str) -> bool:
        """Whether the node may take one more shard of a queue."""
        return queue in self._pool_of and self._remaining[self._pool_of[queue]] > 0

    def fill(self, queue: str) -> None:
        """Count one more shard of a queue."""
        if queue in self._pool_of:
            self._remaining[self._pool_of[queue]] -= 1


def surplus_shards(owned: Sequence[ShardRef], busy: frozenset[ShardRef], quota: int) -> list[ShardRef]:
    """Return the shards beyond a node's quota: idle ones first, then by descending index."""
    surplus = len(owned) - quota
    if surplus <= 0:
        return []
    return sorted(owned, key=lambda shard: (shard in busy, [-shard.index], shard.queue))[:surplus]


def least_loaded_lane(loads: Sequence[int]) -> int:
    """Return the lane with the fewest shards, the first of equals. From empty lanes, this deals in turn."""
    return min(range(len(loads)), key=lambda lane: (loads[lane], lane))


def moves(lanes: Sequence[Sequence[ShardRef]], busy: frozenset[ShardRef]) -> Iterator[tuple[ShardRef, int]]:
    """Yield idle shards to move, each with its new lane, until lanes differ by one shard at most."""
    loads = [len(shards) for shards in lanes]
    idle = [[shard for shard in shards if shard not in busy] for shards in lanes]
    while loads and max(loads) - min(loads) > 1:
        fullest, emptiest = loads.index(max(loads)), least_loaded_lane(loads)
        if not idle[fullest]:
            return
        yield idle[fullest].pop(), emptiest
        loads[fullest] -= 1
        loads[emptiest] += 1
