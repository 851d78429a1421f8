"""An owned shard: its lease, how long that can be trusted, and its open claims."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.leases import DEADLINE
from celery_lowkiq.rules.models import Lease, QueueSpec, ShardRef

#: Fraction of the lease time before the deadline in which no batch starts.
NO_CLAIM_BEFORE_DEADLINE = 0.3
#: Fraction of the lease time, after a renewal was sent, in which batches start.
CLAIMING = DEADLINE - NO_CLAIM_BEFORE_DEADLINE


@dataclass
class OwnedShard:
    """A lease with its local state. Ownership renews it, and the shard's lane claims under it."""

    queue: QueueSpec
    lease: Lease
    lease_seconds: float
    #: Monotonic time before the last successful renewal was sent.
    renewed_at: float
    #: Number of the last claim request.
    request: int = 0
    open_claims: OpenClaims = field(default_factory=OpenClaims)
    #: Set while another node may own the shard; running batches see it.
    lost: threading.Event = field(default_factory=threading.Event)
    #: True if no new batch starts, and the shard is to be released: the settle of its last batch does so.
    leaving: bool = False
    #: True if the lane has sent that settle: from then on, a lease that is gone is no loss.
    release_sent: bool = False
    #: True if a release was ever sent: another node may own the shard since, whatever the answer was.
    may_be_released: bool = False

    @property
    def shard(self) -> ShardRef:
        return self.lease.shard

    def open_claim(self, claim: int) -> None:
        """Record a claim that is to be settled."""
        self.open_claims = OpenClaims(max(claim, self.open_claims.last), (*self.open_claims.open, claim))

    def close_claim(self, claim: int) -> None:
        """Record that a claim was settled or given up."""
        rest = tuple(number for number in self.open_claims.open if number != claim)
        self.open_claims = OpenClaims(self.open_claims.last, rest)

    def renew(self, renewed: Lease, sent_at: float, answered_at: float) -> bool:
        """Record a renewal that was sent and answered at these times (monotonic).

        False when it proves nothing: the answer came from another server than that of the lease, after the
        lease had lapsed, or after a release was sent. That server may have lost what another node has written
        meanwhile. Before, there was no other node: from then on, that server would show every other owner.
        """
        if renewed.server != self.lease.server:
            if self.lapsed(answered_at) or self.may_be_released:
                return False
            self.lease = renewed
        self.renewed_at = sent_at
        self.lost.clear()
        return True

    @property
    def deadline(self) -> float:
        """Monotonic time until which no other node can own the shard."""
        return self.renewed_at + DEADLINE * self.lease_seconds

    def lapsed(self, now: float) -> bool:
        """True if another node may have taken the shard since the last renewal."""
        return now >= self.deadline

    def may_claim(self, now: float) -> bool:
        """True if enough of the lease is left to start a batch."""
        return now < self.renewed_at + CLAIMING * self.lease_seconds
