"""How many shards each node should hold, and which lane gets the next one.

Nodes do not talk to each other. Each sees who is alive, computes the same quotas from that, gives up what it
holds beyond its own, and takes what is free up to it. What a node holds within its quota it keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .models import ShardRef

#: A node counts as gone when its heartbeat was seen unmoved for so many lease times.
GONE = 1.05
#: A shard that is free for so many lease times is taken by anyone, whatever its quota.
ORPHANED = 3.0


@dataclass(frozen=True)
class Member:
    """What was seen of a node's heartbeat. It counts from the first time that its counter moved."""

    name: str
    lanes: int
    counter: int
    #: Monotonic time at which the counter was first seen at this value.
    since: float
    moved: bool = False

    def look(self, counter: int, now: float) -> Member:
        """The member after another look."""
        if counter == self.counter:
            return self
        return replace(self, counter=counter, since=now, moved=True)

    def alive(self, now: float, lease_seconds: float) -> bool:
        """Whether the node takes part in the sharing."""
        return self.moved and now < self.since + GONE * lease_seconds

    def gone(self, now: float, lease_seconds: float) -> bool:
        """Whether its heartbeat may be removed."""
        return now >= self.since + ORPHANED * lease_seconds


def quotas(shards: int, lanes: Mapping[str, int]) -> dict[str, int]:
    """Shards for each node, in proportion to its lanes; the sum is ``shards``.

    Rounded by largest remainders, ties by name, so that every node computes the same.
    """
    total = sum(lanes.values())
    exact = {name: shards * count / total for name, count in lanes.items()}
    found = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(lanes, key=lambda name: (found[name] - exact[name], name))
    for name in by_remainder[: shards - sum(found.values())]:
        found[name] += 1
    return found


class Room:
    """How many more shards a node may have. Queues that the same nodes serve share one quota."""

    def __init__(self, pools: Sequence[tuple[frozenset[str], int]], held: Sequence[ShardRef]) -> None:
        """``pools``: queues, and the node's quota of all their shards; ``held`` is what it has."""
        self._pool_of = {queue: number for number, (queues, _) in enumerate(pools) for queue in queues}
        self._left = [quota for _, quota in pools]
        for shard in held:
            self.fill(shard.queue)

    def left(self, queue: str) -> bool:
        """Whether the node may have one more shard of a queue."""
        return queue in self._pool_of and self._left[self._pool_of[queue]] > 0

    def fill(self, queue: str) -> None:
        """The node has one more."""
        if queue in self._pool_of:
            self._left[self._pool_of[queue]] -= 1


def to_give_up(held: Sequence[ShardRef], busy: frozenset[ShardRef], quota: int) -> list[ShardRef]:
    """What a node holds beyond its quota: shards that are idle first, the last ones first."""
    surplus = len(held) - quota
    if surplus <= 0:
        return []
    return sorted(held, key=lambda shard: (shard in busy, [-shard.index], shard.queue))[:surplus]


def lane_for(loads: Sequence[int]) -> int:
    """The lane with the fewest shards, the first of equals: in order, this deals like Lowkiq's splitter."""
    return min(range(len(loads)), key=lambda lane: (loads[lane], lane))


def moves(lanes: Sequence[Sequence[ShardRef]], busy: frozenset[ShardRef]) -> Iterator[tuple[ShardRef, int]]:
    """Idle shards to move, each with the lane to move it to, until lanes differ by one shard at most."""
    loads = [len(shards) for shards in lanes]
    idle = [[shard for shard in shards if shard not in busy] for shards in lanes]
    while loads and max(loads) - min(loads) > 1:
        fullest, emptiest = loads.index(max(loads)), lane_for(loads)
        if not idle[fullest]:
            return
        yield idle[fullest].pop(), emptiest
        loads[fullest] -= 1
        loads[emptiest] += 1
