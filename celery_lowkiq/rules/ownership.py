"""When a node may take a shard, decided from observed leases on the node's own monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .balance import ORPHAN_TIMEOUT_LEASES
from .models import LeaseState, QueueSpec, ShardRef

#: Lease times without a renewal after which another node may take the shard.
TAKEOVER_LEASES = 1.05
#: Renewals per lease time; other nodes observe as often.
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
    #: Whether observations came from more than one Redis process.
    restarted: bool = False

    def observed(self, state: LeaseState, now: float) -> LeaseWatch:
        """Return the watch updated by a newly read lease."""
        if self.since is not None and state == self.seen:
            return self
        return replace(
            self,
            seen=state,
            since=now,
            known_epoch=max(self.known_epoch, state.epoch),
            restarted=self.restarted or (self.since is not None and state.server != self.seen.server),
        )

    def doubted(self) -> LeaseWatch:
        """Return the watch after a Redis outage.

        An owner could not renew during the outage, so its timeout starts again. A lease without an owner
        needs no renewal, so its timeout goes on.
        """
        return replace(self, since=None) if self.seen.owner else self

    def may_take(self, now: float, lease_seconds: float) -> bool:
        """Whether the shard was released, or its lease has expired."""
        if self.since is None or now < self.not_before:
            return False
        return now >= self._free_at(self.since, lease_seconds)

    def waits_until(self, lease_seconds: float) -> float | None:
        """Return the monotonic time at which a shard is free whose last lease another Redis process gave.

        None for any other shard.
        """
        if self.since is None or self.seen.owner or self._released():
            return None
        return self._free_at(self.since, lease_seconds)

    def _free_at(self, since: float, lease_seconds: float) -> float:
        if not self._released():
            return since + TAKEOVER_LEASES * lease_seconds
        return since + LEAVING if self.seen.leaving else since

    def _released(self) -> bool:
        # A Redis that restarted with older data may show an owned shard as free: only the server that gave
        # the last lease can tell that it was released.
        if self.seen.owner:
            return False
        if self.seen.epoch == 0:
            return self.known_epoch == 0 and not self.restarted
        return self.seen.given_on == self.seen.server

    @property
    def forgotten(self) -> bool:
        """Whether Redis shows an older lease than the node knows of: Redis lost the writes since."""
        return self.since is not None and self.seen.epoch < self.known_epoch

    def ours(self, owner: str) -> bool:
        """Whether the lease is this node's own, since the reply to its acquire was lost."""
        return self.seen.owner == owner and self.seen.given_on == self.seen.server

    def orphaned(self, now: float, lease_seconds: float) -> bool:
        """Whether the shard was free for so long that any node should take it, whatever its quota."""
        return self.since is not None and now >= self.since + ORPHAN_TIMEOUT_LEASES * lease_seconds

    def seconds_to_observation(self, now: float, lease_seconds: float) -> float:
        """Return the seconds until the next observation."""
        regular = lease_seconds / RENEWALS_PER_LEASE
        if self.since is None:
            return regular
        return min(regular, max(0.0, self._free_at(self.since, lease_seconds) - now) or regular)
