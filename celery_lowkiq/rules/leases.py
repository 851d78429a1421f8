"""Leases: when a node may take a shard, decided from observed leases on the node's own monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_lowkiq.rules.models import LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.shares import ORPHAN_TIMEOUT_LEASES, Member

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
