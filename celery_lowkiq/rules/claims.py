"""Claims: shards that are due, and the order in which a lane works them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from celery_lowkiq.rules.errors import AccessDenied, StoreUnavailable
from celery_lowkiq.rules.models import Job, Lease, QueueSpec, Settlement, ShardRef

# Requests of a shard's owner to the store, and their answers.

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
    claimed because only suspects are due and the request excluded them.
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


def run_count(jobs: int, batch_size: int) -> int:
    """Return the number of runs of a claim."""
    return -(-jobs // batch_size)


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


# Schedulers: choose the next of a lane's shards to work. Every lane has its own.

#: ``(due times by shard, Redis's now) -> shard, or None to work none now``. A lane passes the shards that are
#: due, at least one, and falls back to ``lag`` when the answer is not one of them.
Scheduler = Callable[[Mapping[ShardRef, float], float], "ShardRef | None"]


def lag() -> Scheduler:
    """Choose the shard whose oldest due job has waited longest."""

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        shard = min(due, key=lambda ref: (due[ref], ref), default=None)
        return shard if shard is not None and due[shard] <= now else None

    return pick


def seq() -> Scheduler:
    """Choose the due shards in turn."""
    last: list[ShardRef] = []

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        ready = sorted(ref for ref, when in due.items() if when <= now)
        if not ready:
            return None
        following = [ref for ref in ready if last and ref > last[0]]
        last[:] = [(following or ready)[0]]
        return last[0]

    return pick


def weighted(weights: Mapping[str, float], draw: Callable[[], float] = random.random) -> Scheduler:
    """Draw a queue with due jobs by weight (default 1), then choose its shard by lag.

    ``draw`` returns a random number in [0, 1).
    """
    by_lag = lag()

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        ready = {ref: when for ref, when in due.items() if when <= now}
        queues = sorted({ref.queue for ref in ready})
        if len(queues) > 1:
            # Efraimidis and Spirakis: the largest u**(1/weight) wins. Logarithms keep small weights apart.
            queues = [max(queues, key=lambda name: math.log(1.0 - draw()) / weights.get(name, 1.0))]
        return by_lag({ref: when for ref, when in ready.items() if ref.queue in queues}, now)

    return pick
