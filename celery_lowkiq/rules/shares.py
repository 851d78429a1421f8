"""Shares: how many shards a node has, and which lane gets them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_lowkiq.rules.models import ShardRef

# Nodes do not talk to each other. Each node sees which nodes are alive and computes the same quotas from
# that. It gives up shards beyond its quota, takes free shards up to it, and keeps the others. The nodes
# that count are chosen in ``worker/members.py``.

#: Lease times without a heartbeat, half a turn and one and a half, after which it is late, and unresponsive.
LATE_LEASES = 0.1
UNRESPONSIVE_LEASES = 0.3
#: Lease times without a heartbeat after which a node no longer counts for quotas.
NODE_TIMEOUT_LEASES = 1.05
#: Lease times after which any node takes a free shard, whatever its quota.
ORPHAN_TIMEOUT_LEASES = 3.0


@dataclass(frozen=True)
class Member:
    """A node's heartbeat as another node observed it. The node counts once its heartbeat has moved."""

    name: str
    lanes: int
    #: Number of its last turn.
    turn: int
    #: Monotonic time at which this turn was first seen.
    since: float
    moved: bool = False
    #: Monotonic time at which the node was first seen.
    first_seen: float = -math.inf

    def observed(self, turn: int, now: float) -> Member:
        """Return the member updated by a newly read turn."""
        if turn == self.turn:
            return self
        return replace(self, turn=turn, since=now, moved=True)

    def late(self, now: float, lease_seconds: float) -> bool:
        """True if the heartbeat of this turn is missing: it may just come a little later than ours."""
        return now >= self.since + LATE_LEASES * lease_seconds

    def unresponsive(self, now: float, lease_seconds: float, read_since: float = -math.inf) -> bool:
        """True if heartbeats are missing, although they could be read from ``read_since`` (monotonic) on."""
        return now >= self.unresponsive_at(lease_seconds, read_since)

    def unresponsive_at(self, lease_seconds: float, read_since: float = -math.inf) -> float:
        """Return the monotonic time at which the node is unresponsive, unless its heartbeat moves before."""
        return max(self.since, read_since) + UNRESPONSIVE_LEASES * lease_seconds

    def alive(self, now: float, lease_seconds: float) -> bool:
        """True if the node counts for quotas."""
        return self.moved and now < self.since + NODE_TIMEOUT_LEASES * lease_seconds

    def is_new(self, now: float, lease_seconds: float) -> bool:
        """True if the node cannot have seen a lease expire because it has begun later."""
        return now < self.first_seen + NODE_TIMEOUT_LEASES * lease_seconds

    def gone(self, now: float, lease_seconds: float) -> bool:
        """True if the node's heartbeat may be deleted."""
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


class Pool(NamedTuple):
    """Queues that the same nodes serve, and a node's quota of all their shards."""

    queues: frozenset[str]
    quota: int
    #: The same without new nodes. What expires, these may take later only: they get their share by releases.
    quota_of_expired: int


class QuotaRoom:
    """The number of shards that a node may still take. Queues served by the same nodes share one quota."""

    def __init__(self, pools: Sequence[Pool], owned: Sequence[ShardRef]) -> None:
        """``owned``: the shards that the node owns."""
        self._pool_of = {queue: pool for pool in pools for queue in pool.queues}
        self._filled = dict.fromkeys(pools, 0)
        for shard in owned:
            self.fill(shard.queue)

    def left(self, queue: str, expired: bool = False) -> bool:
        """True if the node may take one more shard of a queue, which was released or has ``expired``."""
        pool = self._pool_of.get(queue)
        return pool is not None and self._filled[pool] < (pool.quota_of_expired if expired else pool.quota)

    def fill(self, queue: str) -> None:
        """Count one more shard of a queue."""
        if queue in self._pool_of:
            self._filled[self._pool_of[queue]] += 1


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


# Splitters: deal a node's shards to its lanes.

#: ``(shards, number of lanes) -> the shards of each lane``.
Splitter = Callable[[Sequence[ShardRef], int], "list[tuple[ShardRef, ...]]"]


def lease_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal all shards on every node; the nodes share them by leases and quotas (``quotas``)."""
    return default_splitter(shards, lanes)


def default_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal the shards in turn, so that the lanes differ by one shard at most."""
    return [tuple(shards[lane::lanes]) for lane in range(lanes)]
