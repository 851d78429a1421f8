"""What an owner asks of the store about the jobs of its shard, and what it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from .models import Job, Lease, LeaseState, QueueSpec, ShardRef, Verdict


@dataclass(frozen=True)
class ToAcquire:
    """A wish for a shard whose lease was ``seen``; ``known_epoch`` is the largest that the asker knows of."""

    queue: QueueSpec
    shard: ShardRef
    seen: LeaseState
    known_epoch: int


@dataclass(frozen=True)
class InHand:
    """What an owner knows of its claims on a shard: the largest number, and those that it has not settled."""

    last: int = 0
    open: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claim:
    """Jobs moved from waiting to processing. ``number`` is 0 and ``jobs`` empty when none was due.

    ``now`` is Redis's clock (Unix s); ``next_due`` is the smallest ``perform_in`` that is left among
    jobs that may be claimed, None when there is none. ``suspect``: the batch is one. ``suspect_due``:
    nothing was taken since only suspects are due, which the caller would not have.
    """

    number: int
    jobs: tuple[Job, ...]
    now: float
    next_due: float | None
    suspect: bool = False
    suspect_due: bool = False


@dataclass(frozen=True)
class ToClaim:
    """A wish for due jobs of a shard: at most so many batches. The same ``request`` gives the same jobs."""

    queue: QueueSpec
    lease: Lease
    request: int
    in_hand: InHand | None = None
    suspects: bool = True
    batches: int = 1


@dataclass(frozen=True)
class ToSettle:
    """Outcomes of claimed jobs of a shard."""

    queue: QueueSpec
    lease: Lease
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Settled:
    """Answer of a settle: which ids it changed (a repeated or late verdict changes nothing)."""

    accepted: frozenset[str]
    now: float
    next_due: float | None


@dataclass(frozen=True)
class Due:
    """Smallest claimable ``perform_in`` of a shard (None: nothing waits), read at Redis's ``now``."""

    next_due: float | None
    now: float
