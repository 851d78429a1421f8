"""Interfaces of the worker: the store, the runner of task functions, the host process, and a meter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from celery_lowkiq.rules.claims import Claim, ClaimRequest, Due, OpenClaims, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import LowkiqError, ShardDamaged, StoreError
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Batch, Lease, LeaseState, QueueSpec, Renewed, Settlement, ShardRef
from celery_lowkiq.rules.policies import TokenRequest, Tokens
from celery_lowkiq.rules.topology import Master
from celery_lowkiq.rules.views import BeatResult, NodeReport, NodeUpdate, Running

#: Exit status of a worker that crashes, and of a process that a run forked.
EXIT_CRASHED = 70


class Subscription(Protocol):
    """Announcements of pushes and releases, read by one thread."""

    def wait_pushed(self, timeout: float) -> tuple[ShardRef, float | None] | None:
        """Return the next announcement, or None after ``timeout`` s.

        A push gives the shard and its smallest ``perform_in`` (Unix s of Redis's clock), a release the shard
        and None. Raises StoreUnavailable when the connection is lost; a new subscription is needed then.
        """

    def close(self) -> None:
        """Free the connection, also while another thread waits in :meth:`wait_pushed`."""


class Mover(Protocol):
    """Moves one queue to another number of shards. Used by one thread."""

    def turn(self) -> bool:
        """Do one turn of the queue's migration. False when nothing could be done. Raises FormatMismatch,
        StoreError.
        """

    def pause(self, movers: int) -> float:
        """Return how many seconds to wait after the last turn, beside other movers; ``movers``: of all."""


class Store(Protocol):
    """Requests of a node to Redis. Every method may raise StoreUnavailable, and may be repeated then.

    An answer about one shard or queue may say that its master is unreachable and others respond.
    """

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState | None]:
        """Read the leases of the shards in one round trip; None for a shard whose master is unreachable."""

    def acquire_all(self, wanted: Sequence[LeaseWatch], owner: str) -> list[Lease | LowkiqError]:
        """Take each watched shard whose lease is still as ``seen``, and recover its jobs, in one round trip.

        Each answer is a lease or an error: NotOwner when the lease has changed, QueueResharded, or
        ShardRepairing when lost keys are being repaired in the background.
        """

    def renew(self, leases: Sequence[Lease], stopping: bool, turn: int) -> list[Renewed]:
        """Move the counter of each lease, and return each as the server that answered has it.

        ``stopping`` is written into the lease: jobs that such an owner leaves do not count as crashed. So is
        ``turn``, the number of the owner's turn.
        """

    def release(self, lease: Lease, unsettled: bool = False) -> bool | None:
        """Give the shard up. Return False when jobs are still in processing, or on another server than the
        lease names, unless ``unsettled`` leaves the jobs to the next owner; None when the shard's master is
        unreachable. Raises NotOwner.
        """

    def exchange(
        self, settle: SettleRequest | None, claim: ClaimRequest | None
    ) -> tuple[SettleReply | StoreError | None, Claim | StoreError | None]:
        """Settle claimed jobs, then claim due jobs, in one round trip; each is atomic in its shard.

        A claim takes at most 1,000 payloads or 1 MiB of an id, lowest scores first; the rest stays waiting.
        A settle may release its shard, which does nothing while jobs are in processing. The same ``request``
        (a growing int) claims the same jobs again. Jobs in processing of claims other than ``in_hand`` go
        back. A suspect is claimed alone, and only if ``suspects``. Each answer may be an error of its own,
        such as NotOwner.
        """

    def retract_crashes(self, lease: Lease) -> None:
        """Undo the crashes that were counted for the owner of this lease: it is alive."""

    def beat(
        self, queues: Sequence[str], owner: str, lanes: int, turn: int, update: NodeUpdate
    ) -> BeatResult:
        """Move the node's heartbeat in each queue to ``turn`` and write its report, in one round trip.

        Returns lanes and turn of all nodes, and the stored number of shards. A node without ``lanes`` has no
        heartbeat there, and reads the numbers only. A refused report does not affect the heartbeat.
        """

    def mover(self, queue: QueueSpec) -> Mover:
        """Return a mover of the queue, for the use of one thread; any number of movers may work at once."""

    def begin_migration(self, queue: str, shards: int) -> bool:
        """Begin to move a queue to another number of shards; False when it is moving."""

    def nodes(self) -> list[NodeReport]:
        """Return the last reports of the nodes that reported in the last hour and did not shut down."""

    def forget_report(self, owner: str) -> None:
        """Remove the report of a node."""

    def forget_members(self, queue: str, members: Sequence[tuple[str, int]]) -> None:
        """Remove heartbeats, given by owner and lanes."""

    def next_due(
        self, shards: Sequence[ShardRef], in_hand: Sequence[OpenClaims] = (), were_empty: Sequence[bool] = ()
    ) -> Sequence[Due | ShardDamaged | None]:
        """Read the smallest claimable ``perform_in`` of each shard; its damage for a shard that has one, and
        None for a shard whose master is unreachable.

        The answer is now when jobs of claims other than ``in_hand`` are in processing. Of shards that
        ``were_empty``, only waiting jobs are looked for.
        """

    def count_due(self, shards: Sequence[ShardRef]) -> int:
        """Return the number of due jobs of the shards, without those of masters that are unreachable."""

    def tokens(self, asked: TokenRequest) -> Tokens | StoreError:
        """Take or return tokens of a rate-limited queue; repeating a request number changes nothing.

        The error is of the master that has them, beside which others respond.
        """

    def masters(self, shards: Sequence[ShardRef]) -> list[Master]:
        """Return the masters that answer, with memory limit, eviction policy and refused commands.

        ``shards``: some of theirs.
        """

    def subscribe(self, queues: Sequence[QueueSpec]) -> Subscription:
        """Subscribe to the announcements of the queues."""


class Runner(Protocol):
    """Celery's side: what happens with a batch between claim and settle. Never raises Exception."""

    def run(self, batch: Batch) -> tuple[Settlement, ...]:
        """Run the task function, write its results, and return a settlement for every job of the batch.

        It returns no settlements if results are still to be written: :meth:`flush` does that, and has them.
        SystemExit, KeyboardInterrupt and GeneratorExit pass through: they end the worker.
        """

    def flush(self) -> tuple[Settlement, ...]:
        """Write what the runs of the calling thread have left, and return the settlements that wait for it.

        Called before each settle.
        """

    def write_late(self) -> None:
        """Write the results of lanes that have waited for long, behind a run. Called by the reaper."""

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        """Handle an accepted settle: ``accepted`` are the ids that it changed."""


class Host(Protocol):
    """The process that the worker runs in."""

    def stop(self, exitcode: int, reason: str) -> None:
        """Ask the process to drain and end with ``exitcode``; called from any thread."""

    def alarm(self, lane: str, run: Running, waiting: int | None) -> None:
        """Warn of an overdue run, once; ``waiting``: due jobs that wait behind it, None: not known."""

    def last_words(self, error: BaseException) -> None:
        """Report an error outside a task's function that ends a lane or the worker."""


class Meter:
    """Counts the work of a node. Called for every batch, from any thread: must be quick and never raise.

    This one counts nothing.
    """

    def ran(self, batch: Batch, began_at: float, seconds: float) -> None:
        """Count a batch that began at ``began_at`` (Unix s of Redis's clock) and took ``seconds``."""

    def renewed(self, leases: int) -> None:
        """Count renewed leases."""

    def lost(self) -> None:
        """Count a shard that another node took."""

    def refused(self) -> None:
        """Count a request that Redis did not answer or refused."""

    def outage(self) -> None:
        """Count an outage of Redis, once until all threads have been answered again."""

    def unverified(self, queue: str, payloads: int) -> None:
        """Count payloads that go to the morgue since their signatures do not verify."""

    def loop_lag(self, seconds: float) -> None:
        """Measure by how many ``seconds`` the event loop of ``async def`` tasks is late."""


NULL_METER = Meter()
