"""A lease in the hands of this node."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from celery_lowkiq.rules.claims import InHand
from celery_lowkiq.rules.models import Lease, QueueSpec, ShardRef

#: Parts of the lease time T, after the moment before the last renewal was sent.
DEADLINE = 0.8
NO_CLAIM_BEFORE_DEADLINE = 0.3


@dataclass
class Held:
    """A lease, with what only this node knows of it: how far it may be trusted, and its claims."""

    queue: QueueSpec
    lease: Lease
    #: T, in s.
    seconds: float
    #: Monotonic time before the last successful renewal was sent.
    renewed_at: float
    request: int = 0
    in_hand: InHand = field(default_factory=InHand)
    #: Set while this node cannot be sure that the shard is still its own.
    lost: threading.Event = field(default_factory=threading.Event)

    @property
    def shard(self) -> ShardRef:
        return self.lease.shard

    def took(self, claim: int) -> None:
        """A claim was made."""
        self.in_hand = InHand(max(claim, self.in_hand.last), (*self.in_hand.open, claim))

    def let_go(self, claim: int) -> None:
        """A claim was settled, or given up."""
        rest = tuple(number for number in self.in_hand.open if number != claim)
        self.in_hand = InHand(self.in_hand.last, rest)

    @property
    def deadline(self) -> float:
        """Until this monotonic time nobody else can have the shard."""
        return self.renewed_at + DEADLINE * self.seconds

    def lapsed(self, now: float) -> bool:
        """Whether somebody else may have taken the shard since the last renewal."""
        return now >= self.deadline

    def may_claim(self, now: float) -> bool:
        """Whether enough of the lease is left to begin something."""
        return now < self.deadline - NO_CLAIM_BEFORE_DEADLINE * self.seconds
