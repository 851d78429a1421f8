"""How many shards each node should hold, and which lane gets the next one.

Nodes do not talk to each other. Each sees who is alive, computes the same quotas from that, gives up what it
holds beyond its own, and takes what is free up to it. What a node holds within its quota it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def to_give_up(held: Sequence[ShardRef], busy: frozenset[ShardRef], quota: int) -> list[ShardRef]:
    """What a node holds beyond its quota: shards that are idle first, the last ones first."""
    surplus = max(0, len(held) - quota)
    return sorted(held, key=lambda shard: (shard in busy, [-shard.index], shard.queue))[:surplus]


def lane_for(loads: Sequence[int]) -> int:
    """The lane with the fewest shards, the first of equals: in order, this deals like Lowkiq's splitter."""
    return min(range(len(loads)), key=lambda lane: (loads[lane], lane))


def move_between(
    lanes: Sequence[Sequence[ShardRef]], busy: frozenset[ShardRef]
) -> tuple[ShardRef, int] | None:
    """An idle shard to move, and the lane to move it to, when two lanes differ by more than one shard."""
    loads = [len(shards) for shards in lanes]
    if not loads or max(loads) - min(loads) <= 1:
        return None
    fullest = lanes[loads.index(max(loads))]
    idle = [shard for shard in fullest if shard not in busy]
    return (idle[-1], lane_for(loads)) if idle else None
