"""The seam of the worker: what it needs from the store, from Celery's side, and from its host process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from celery_lowkiq.rules.claims import Claim, Due, InHand, Settled, ToAcquire, ToClaim, ToSettle
from celery_lowkiq.rules.errors import LowkiqError, StoreError
from celery_lowkiq.rules.health_checks import Server
from celery_lowkiq.rules.models import Batch, Lease, LeaseState, QueueSpec, ShardRef, Verdict
from celery_lowkiq.rules.rate import TokenRequest, Tokens
from celery_lowkiq.rules.reports import Heard, NodeNews


class Subscription(Protocol):
    """Pushes announced by the store, for one reading thread."""

    def wait_pushed(self, timeout: float) -> tuple[ShardRef, float | None] | None:
        """Block up to ``timeout`` s for the next announcement: the shard and its new smallest
        ``perform_in`` (Unix s of Redis's clock), or the shard and None when it was released; None when
        nothing came.

        Raises StoreUnavailable when the connection is lost; make a new subscription then.
        """

    def close(self) -> None:
        """Free the connection; any other call may be in progress in another thread."""


class Store(Protocol):
    """What a node asks of Redis. Every method may raise StoreUnavailable, and may be repeated then."""

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState]:
        """Leases of the shards as they stand now, in one round trip."""

    def acquire_all(self, wanted: Sequence[ToAcquire], owner: str) -> list[Lease | LowkiqError]:
        """Take each shard whose lease is still as ``seen``, and recover what was in processing, in one round
        trip. Answers may be errors of their own: NotOwner when a lease has changed since, ShardCountMismatch.
        """

    def renew(
        self, leases: Sequence[Lease], lapsed: Sequence[bool] = (), stopping: bool = False
    ) -> list[bool]:
        """Move the counter of each lease, in one round trip; False where it is no longer ours. One that is
        ``lapsed`` (its owner was silent for too long) is renewed only by the server that gave it.

        ``stopping`` is written into the lease: what such an owner leaves is no crash.
        """

    def release(self, lease: Lease, unsettled: bool = False) -> bool:
        """Give the shard up; False when jobs of it are still in processing, unless these may stay there,
        ``unsettled``, for the next owner to recover. Raises NotOwner.
        """

    def exchange(
        self, settle: ToSettle | None, claim: ToClaim | None
    ) -> tuple[Settled | StoreError | None, Claim | StoreError | None]:
        """End claimed jobs, each shard's atomically, then move due jobs to processing, in one round trip.

        The same ``request`` (an int that grows) claims the same jobs again. What is in processing of other
        claims than those ``in_hand`` goes back. A suspect is claimed alone; without ``suspects`` none is.
        Either answer may be an error of its own, as NotOwner.
        """

    def forgive(self, lease: Lease) -> None:
        """Take back the deaths that were counted for this lease's owner: it lives."""

    def beat(self, queues: Sequence[str], owner: str, lanes: int, news: NodeNews) -> Heard:
        """Move the node's heartbeat in each queue, and write the news, in one round trip; lanes and counter
        of all nodes. News that are refused do not disturb the rest.
        """

    def forget_report(self, owner: str) -> None:
        """Remove what a node said of itself."""

    def forget_members(self, queue: str, members: Sequence[tuple[str, int]]) -> None:
        """Remove heartbeats, named by owner and lanes."""

    def next_due(self, shards: Sequence[ShardRef], in_hand: Sequence[InHand] = ()) -> list[Due]:
        """Smallest claimable ``perform_in`` of each shard, in one round trip; now, when something is left
        of other claims than those ``in_hand``.
        """

    def tokens(self, asked: TokenRequest) -> Tokens:
        """Take tokens of a limited queue, or give some back; the same number changes nothing."""

    def memory(self) -> Server:
        """Redis's limit of memory, and what it does at that; unknown where it does not tell."""

    def subscribe(self, queues: Sequence[QueueSpec]) -> Subscription:
        """Listen to pushes on the queues."""


class Runner(Protocol):
    """Celery's side: what happens with a batch between claim and settle. Never raises Exception."""

    def run(self, batch: Batch) -> tuple[Verdict, ...]:
        """Decode, run the task function, and decide about every job of the batch (results are written
        here, before the settle). SystemExit, KeyboardInterrupt and GeneratorExit go through: they end the
        worker.
        """

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        """Called after an accepted settle with the ids that it changed: on_retries_exhausted and such."""


class Host(Protocol):
    """The process that the worker lives in."""

    def stop(self, exitcode: int, reason: str) -> None:
        """Ask the process to end with ``exitcode`` after a drain; called from any thread."""

    def alarm(self, batch: Batch, seconds: float) -> None:
        """Tell the user, once a batch, that it runs for longer than its task's ``max_run``."""

    def last_words(self, error: BaseException) -> None:
        """Tell the user about an error from outside a task's function that ends a lane or the worker."""


class Meter(Protocol):
    """Counts what a node does, for whoever watches it. Called on the way of every batch, from any thread: it
    must be quick, and never raise.
    """

    def ran(self, batch: Batch, began_at: float, seconds: float) -> None:
        """A batch began at ``began_at`` (Unix s of Redis's clock), and ran for so long."""

    def renewed(self, leases: int) -> None:
        """So many leases were renewed."""

    def lost(self) -> None:
        """A shard turned out to be another node's."""

    def refused(self) -> None:
        """Redis did not answer, or refused what was asked."""

    def outage(self) -> None:
        """Redis is away from now on, for some thread at least; told once, until it has answered all."""
