"""Leases: the share of a node, and when it may take a shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_lowkiq.rules.models import LeaseState, QueueSpec, ShardRef

# Distribution of shards over nodes and lanes: quotas, and which lane gets the next shard.
#
# Nodes do not talk to each other. Each node sees which nodes are alive and computes the same quotas from
# that. It gives up shards beyond its quota, takes free shards up to it, and keeps the others.

#: Lease times without a heartbeat, half a turn and one and a half, after which it is late, and silent.
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
        """Return the monotonic time from which on the node is silent, unless its heartbeat moves before."""
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


# When a node may take a shard, decided from observed leases on the node's own monotonic clock.

#: Lease times after the last renewal was sent, when its owner takes a lease for lost.
DEADLINE = 0.8
#: Lease times without a renewal after which another node may take the shard.
TAKEOVER_LEASES = 1.05
#: Renewals per lease time; heartbeats are as frequent.
RENEWALS_PER_LEASE = 5
#: Timeout in s for Redis when an exiting process releases shards whose batches still run.
EXIT_TIMEOUT = 0.4
#: Delay in s before such a shard may be taken: by then that process has ended.
LEAVING = 0.5

NEVER_SEEN = LeaseState()


@dataclass(frozen=True)
class LeaseWatch:
    """A node's observations of a shard that it wants and does not own."""

    queue: QueueSpec
    shard: ShardRef
    seen: LeaseState = NEVER_SEEN
    #: Monotonic time at which ``seen`` was first observed; None before the first observation.
    since: float | None = None
    #: The largest epoch that the node knows of.
    known_epoch: int = 0
    #: Monotonic time of the next attempt, after a refused acquire.
    not_before: float = 0.0
    #: True if observations came from more than one Redis process.
    restarted: bool = False

    def observed(self, state: LeaseState, now: float, heartbeat: Member | None = None) -> LeaseWatch:
        """Return the watch updated by a newly read lease, and by the last ``heartbeat`` of its owner."""
        if self.since is not None and state == self.seen:
            return self
        return replace(
            self,
            seen=state,
            since=self._unchanged_since(state, now, heartbeat),
            known_epoch=max(self.known_epoch, state.epoch),
            restarted=self.restarted or (self.since is not None and state.server != self.seen.server),
        )

    def _unchanged_since(self, state: LeaseState, now: float, heartbeat: Member | None) -> float:
        # An owner sends a heartbeat after the renewals of its turn: a lease that shows no later turn has not
        # been renewed since. Not after an outage, and not on a server that may have lost a renewal.
        if self.since is None or (state.owner, state.server) != (self.seen.owner, self.seen.server):
            return now
        if heartbeat is None or not 0 < state.turn <= heartbeat.turn:
            return now
        return max(heartbeat.since, self.since)

    def renewed_by(self, heartbeat: Member | None, now: float, lease_seconds: float) -> bool:
        """True if the lease need not be read: its owner's ``heartbeat`` moves, and it cannot have expired."""
        return (
            heartbeat is not None
            and heartbeat.moved
            and not heartbeat.unresponsive(now, lease_seconds)
            and self.since is not None
            and now < self.since + TAKEOVER_LEASES * lease_seconds
        )

    def doubted(self) -> LeaseWatch:
        """Return the watch after a Redis outage.

        An owner could not renew during the outage, so its timeout starts again. A lease without an owner
        needs no renewal, so its timeout goes on.
        """
        return replace(self, since=None) if self.seen.owner else self

    def may_take(self, now: float, lease_seconds: float) -> bool:
        """True if the shard was released, or its lease has expired."""
        if self.since is None or now < self.not_before:
            return False
        return now >= self._free_at(self.since, lease_seconds)

    def waits_until(self, lease_seconds: float) -> float | None:
        """Return the monotonic time at which a shard is free whose last lease another Redis process gave.

        None for any other shard.
        """
        if self.since is None or self.seen.owner or self.released():
            return None
        return self._free_at(self.since, lease_seconds)

    def _free_at(self, since: float, lease_seconds: float) -> float:
        if not self.released():
            return since + TAKEOVER_LEASES * lease_seconds
        return since + LEAVING if self.seen.leaving else since

    def released(self) -> bool:
        """True if the shard is free at once, or when its leaving owner has ended."""
        # A Redis that restarted with older data may show an owned shard as free: only the server that gave
        # the last lease can tell that it was released.
        if self.seen.owner:
            return False
        if self.seen.epoch == 0:
            return self.known_epoch == 0 and not self.restarted
        return self.seen.given_on == self.seen.server

    @property
    def forgotten(self) -> bool:
        """True if Redis shows an older lease than the node knows of: Redis lost the writes since."""
        return self.since is not None and self.seen.epoch < self.known_epoch

    def ours(self, owner: str) -> bool:
        """True if the lease is this node's own because the reply to its acquire was lost."""
        return self.seen.owner == owner and self.seen.given_on == self.seen.server

    def orphaned(self, now: float, lease_seconds: float) -> bool:
        """True if the shard was free for so long that any node should take it, whatever its quota."""
        return self.since is not None and now >= self.since + ORPHAN_TIMEOUT_LEASES * lease_seconds

    def seconds_to_observation(self, now: float, lease_seconds: float) -> float:
        """Return the seconds until the next observation."""
        regular = lease_seconds / RENEWALS_PER_LEASE
        if self.since is None:
            return regular
        return min(regular, max(0.0, self._free_at(self.since, lease_seconds) - now) or regular)


# Splitters: deal a node's shards to its lanes.

#: ``(shards, number of lanes) -> the shards of each lane``.
Splitter = Callable[[Sequence[ShardRef], int], "list[tuple[ShardRef, ...]]"]


def lease_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal all shards on every node; the nodes share them by leases and quotas (``rules.balance``)."""
    return default_splitter(shards, lanes)


def default_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal the shards in turn, so that the lanes differ by one shard at most."""
    return [tuple(shards[lane::lanes]) for lane in range(lanes)]
