"""Requests of a shard's owner to the store, and their answers."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import AccessDenied, StoreUnavailable
from .models import Job, Lease, QueueSpec, Settlement

#: Errors of a settle that is sent again.
SENT_AGAIN = (AccessDenied, StoreUnavailable)


@dataclass(frozen=True)
class OpenClaims:
    """An owner's claims on a shard: the largest number, and the numbers that it has not settled."""

    last: int = 0
    open: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claim:
    """Jobs moved from waiting to processing. ``number`` is 0 and ``jobs`` empty when no job was due.

    ``now`` is Redis's clock (Unix s); ``next_due`` is the smallest ``perform_in`` of the remaining claimable
    jobs, None without any. ``suspect``: the batch is a suspected poison pill. ``suspect_due``: nothing was
    claimed, since only suspects are due and the request excluded them.
    """

    number: int
    jobs: tuple[Job, ...]
    now: float
    next_due: float | None
    suspect: bool = False
    suspect_due: bool = False


@dataclass(frozen=True)
class ClaimRequest:
    """A request for at most ``batches`` batches of a shard's due jobs. A repeated ``request`` number gets the
    same jobs.
    """

    queue: QueueSpec
    lease: Lease
    request: int
    in_hand: OpenClaims | None = None
    suspects: bool = True
    batches: int = 1


@dataclass(frozen=True)
class SettleRequest:
    """A request to settle claimed jobs of a shard, and to ``release`` it if none is in processing then."""

    queue: QueueSpec
    lease: Lease
    settlements: tuple[Settlement, ...]
    release: bool = False


@dataclass(frozen=True)
class SettleReply:
    """The answer to a settle: the ids that it changed (a repeated or late settlement changes nothing), and
    whether it released the shard.
    """

    accepted: frozenset[str]
    now: float
    next_due: float | None
    released: bool = False


@dataclass(frozen=True)
class Due:
    """The smallest claimable ``perform_in`` of a shard (None: no job waits), read at Redis's ``now``."""

    next_due: float | None
    now: float
