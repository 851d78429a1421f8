"""Who may take a shard, and when: decided from what was seen, on one's own monotonic clock only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .balance import ORPHANED
from .models import LeaseState, QueueSpec, ShardRef

#: A shard may be taken when its lease was seen unchanged for so many lease times.
TAKEOVER = 1.05
#: The owner renews so many times in a lease time, and others look as often.
RENEWALS = 5
#: A process that ends while batches run waits at most so long for Redis when it gives up their shards, in s.
EXIT_PATIENCE = 0.4
#: Such a shard is free when it was seen given up for so long, in s: by then that process is gone.
LEAVING = 0.5


NEVER_SEEN = LeaseState()


@dataclass(frozen=True)
class Watch:
    """What a node has seen of a shard that it wants and has not."""

    queue: QueueSpec
    shard: ShardRef
    seen: LeaseState = NEVER_SEEN
    #: Monotonic time of the first sight of ``seen``; None before any.
    since: float | None = None
    #: The largest epoch that the node knows of.
    known_epoch: int = 0
    #: Not before this monotonic time, after an acquire was refused for good reason.
    not_before: float = 0.0
    #: Whether looks at a shard came from more than one Redis process.
    restarted: bool = False

    def look(self, state: LeaseState, now: float) -> Watch:
        """The watch after another look."""
        if self.since is not None and state == self.seen:
            return self
        return replace(
            self,
            seen=state,
            since=now,
            known_epoch=max(self.known_epoch, state.epoch),
            restarted=self.restarted or (self.since is not None and state.server != self.seen.server),
        )

    def doubted(self) -> Watch:
        """The watch after a time in which Redis did not answer. An owner could not renew meanwhile, so its
        silence begins anew; a lease without an owner is renewed by none, and goes on to run out.
        """
        return replace(self, since=None) if self.seen.owner else self

    def may_take(self, now: float, lease_seconds: float) -> bool:
        """Whether the shard is free: released, or its owner was silent for longer than its lease."""
        if self.since is None or now < self.not_before:
            return False
        return now >= self._free_at(self.since, lease_seconds)

    def waits_until(self, lease_seconds: float) -> float | None:
        """The monotonic time at which a shard is free whose last lease another Redis process gave; None for
        any other.
        """
        if self.since is None or self.seen.owner or self._released():
            return None
        return self._free_at(self.since, lease_seconds)

    def _free_at(self, since: float, lease_seconds: float) -> float:
        if not self._released():
            return since + TAKEOVER * lease_seconds
        return since + LEAVING if self.seen.leaving else since

    def _released(self) -> bool:
        """Whether nobody can have the shard. A Redis that came back with older data may show a shard as free
        whose owner still works: only the server that gave the last lease knows that it was given back.
        """
        if self.seen.owner:
            return False
        if self.seen.epoch == 0:
            return self.known_epoch == 0 and not self.restarted
        return self.seen.given_on == self.seen.server

    @property
    def forgotten(self) -> bool:
        """Whether Redis shows an older lease than the node knows of: it has lost what was written since."""
        return self.since is not None and self.seen.epoch < self.known_epoch

    def ours(self, owner: str) -> bool:
        """Whether the lease is our own: the reply of an acquire was lost."""
        return self.seen.owner == owner and self.seen.given_on == self.seen.server

    def orphaned(self, now: float, lease_seconds: float) -> bool:
        """Whether it was free for so long that anyone should take it."""
        return self.since is not None and now >= self.since + ORPHANED * lease_seconds

    def next_look(self, now: float, lease_seconds: float) -> float:
        """Seconds until looking again is of use."""
        regular = lease_seconds / RENEWALS
        if self.since is None:
            return regular
        return min(regular, max(0.0, self._free_at(self.since, lease_seconds) - now) or regular)
