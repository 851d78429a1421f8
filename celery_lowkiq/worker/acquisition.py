"""Acquires shards: observes the leases of other nodes, and takes what is free."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from celery_lowkiq.rules.basics import Clock
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.errors import (
    LowkiqError,
    NotOwner,
    QueueResharded,
    ShardDamaged,
    ShardRepairing,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Lease, ShardRef
from celery_lowkiq.rules.shares import Member, QuotaRoom, least_loaded_lane
from celery_lowkiq.rules.text import shard_names
from celery_lowkiq.worker.context import WorkerContext
from celery_lowkiq.worker.lane import Lane
from celery_lowkiq.worker.lease_table import LeaseTable
from celery_lowkiq.worker.members import Membership
from celery_lowkiq.worker.owned_shard import OwnedShard

#: Seconds before a queue is tried again after a refusal that needs an operator, such as another format.
REFUSED_RETRY = 60.0
#: The same for one damaged shard, which costs one request.
DAMAGED_RETRY = 10.0
#: The same for a shard under repair, and for one whose queue has another number of shards.
REPAIRING_RETRY = RESHARDED_RETRY = 1.0
#: Shards acquired in one round trip: about 20 ms of work for Redis.
SLICE = 500
#: Seconds between two tries at shards whose master is unreachable: a replica takes its place, and
#: announcements of shards that are released meanwhile may be lost. Not after a lease time, when the outage is
#: a long one.
UNREACHABLE_RETRY = 0.25
#: Seconds between two lines of progress; what takes less is not logged.
PROGRESS_INTERVAL = 5.0


class Acquisition:
    """Shared shards up to the node's quota, each for the lane that has fewest; else all shards, each for the
    lane that it was dealt to.
    """

    def __init__(
        self, ctx: WorkerContext, table: LeaseTable, *, lanes: Sequence[Lane], membership: Membership
    ) -> None:
        self._ctx = ctx
        self._table = table
        self._lanes = lanes
        self._membership = membership
        self._progress = AcquisitionProgress(ctx.clock)
        #: When shards become free (monotonic) that wait out a lease given by another Redis process.
        self.free_at: dict[ShardRef, float] = {}
        #: The shards whose leases were last read, in a turn that read what it had to.
        self._read: frozenset[ShardRef] = frozenset()
        #: Since when (monotonic) the master of a shard has not answered.
        self._away: dict[ShardRef, float] = {}
        #: Shards whose last acquire was refused or not answered, unless another node was faster.
        self._refused: set[ShardRef] = set()

    def observe(self, shards: Sequence[ShardRef], everything: bool = False) -> None:
        """Read the leases of these shards that may be free, or ``everything``. Raises StoreError."""
        self._away = {shard: self._away[shard] for shard in shards if shard in self._away}
        read = shards if everything else self._unproven(shards)
        watches = self._observe(read)
        watches += self._observe(self._of_ahead(watches, set(shards).difference(read)))
        self._read = frozenset(watch.shard for watch in watches)
        now = self._ctx.clock.monotonic()
        before, self.free_at = self.free_at, {}
        for watch in watches:
            free_at = watch.waits_until(self._ctx.lease_seconds)
            if free_at is not None and free_at > now:
                self.free_at[watch.shard] = free_at
        self._log_waits(self.free_at.keys() - before.keys(), now)

    def _unproven(self, shards: Sequence[ShardRef]) -> list[ShardRef]:
        """Leave out shards for which the node has no room while the heartbeat of their owner moves.

        Of a node whose heartbeat is late, one is left in.
        """
        room = self._room() if shards else None
        now, lease_seconds = self._ctx.clock.monotonic(), self._ctx.lease_seconds
        late: dict[str, ShardRef] = {}
        found = []
        for shard in shards:
            watch = self._table.watch(shard)
            heartbeat = self._heartbeat(watch)
            proven = watch.renewed_by(heartbeat, now, lease_seconds) and shard not in self._away
            if room is None or room.left(shard.queue) or not proven:
                found.append(shard)
            elif heartbeat is not None and heartbeat.late(now, lease_seconds):
                late.setdefault(heartbeat.name, shard)
        return [*found, *late.values()]

    def _of_ahead(self, read: Iterable[LeaseWatch], others: Collection[ShardRef]) -> list[ShardRef]:
        """Return the ``others`` whose owner has renewed a lease, and whose heartbeat is late.

        It may have died in between.
        """
        now = self._ctx.clock.monotonic()
        late = {
            watch.seen.owner
            for watch in read
            if (heartbeat := self._heartbeat(watch)) is not None
            and heartbeat.late(now, self._ctx.lease_seconds)
            and watch.seen.turn > heartbeat.turn
        }
        return [shard for shard in others if self._table.watch(shard).seen.owner in late]

    def _heartbeat(self, watch: LeaseWatch) -> Member | None:
        return self._membership.heartbeat(watch.queue.name, watch.seen.owner)

    def _observe(self, shards: Sequence[ShardRef]) -> list[LeaseWatch]:
        states = self._ctx.store.observe(shards) if shards else []
        now = self._ctx.clock.monotonic()
        watches = []
        for shard, state in zip(shards, states, strict=True):
            if state is None:
                watches.append(self._doubt(shard, now))
            else:
                self._away.pop(shard, None)
                heartbeat = self._membership.heartbeat(shard.queue, state.owner)
                watches.append(self._table.observe(shard, state, now, heartbeat))
        return watches

    def _doubt(self, shard: ShardRef, now: float) -> LeaseWatch:
        self._away.setdefault(shard, now)
        return self._table.doubt(shard)

    def _log_waits(self, shards: Collection[ShardRef], now: float) -> None:
        if shards:
            logger.info(
                "Redis restarted, failed over or lost data: a former owner may still work, "
                "free in %.1f s: %s",
                max(self.free_at[shard] for shard in shards) - now,
                shard_names(shards),
            )

    def seconds_to_observation(self, shards: Sequence[ShardRef]) -> float:
        """Return seconds until one of these shards may be free; infinite for no shards."""
        now, lease_seconds = self._ctx.clock.monotonic(), self._ctx.lease_seconds
        if any(now - since < lease_seconds for since in self._away.values()):
            return UNREACHABLE_RETRY
        watches = (self._table.watch(shard) for shard in shards if shard in self._read)
        return min((one.seconds_to_observation(now, lease_seconds) for one in watches), default=math.inf)

    def acquire(self, shards: Iterable[ShardRef], go_on: Callable[[], bool]) -> bool:
        """Acquire free shards in slices while ``go_on()``; return whether all were tried.

        They were not where another node was faster: this node then has room for other shards. A refusal
        postpones all shards of its queue, damage only the damaged shard. Raises StoreError when Redis is
        unavailable.
        """
        free = self._free_ones(shards)
        self._progress.begin(len(self._table.owned()), len(free))
        overtaken: list[LeaseWatch] = []
        for start in range(0, len(free), SLICE):
            if start and not go_on():
                return False
            overtaken += self._acquire(free[start : start + SLICE])
            self._progress.log(len(self._table.owned()))
        if not overtaken:
            return True
        observed = self._observe([watch.shard for watch in overtaken])
        # An unchanged lease is not tried again at once: that could go on for ever.
        return all(now.seen == before.seen for now, before in zip(observed, overtaken, strict=True))

    def _free_ones(self, shards: Iterable[ShardRef]) -> list[LeaseWatch]:
        """Return free shards up to the node's share, in the given order, but those that may be refused last.

        Else these would use up the share in each turn, and no other shard would be acquired.
        """
        room = self._room()
        found = []
        for shard in sorted(shards, key=self._may_be_refused):
            watch = self._table.watch(shard)
            if self._free(watch, room):
                found.append(watch)
                if room is not None:
                    room.fill(shard.queue)
        return found

    def _may_be_refused(self, shard: ShardRef) -> bool:
        return shard in self._away or shard in self._refused

    def _room(self) -> QuotaRoom | None:
        return self._membership.room(
            self._table.without_retired(owned.shard for owned in self._table.owned())
        )

    def _free(self, watch: LeaseWatch, room: QuotaRoom | None) -> bool:
        # Never while a thread of this node still works under an older epoch.
        if self._table.get(watch.shard) is not None or self._table.in_use(watch.shard):
            return False
        now = self._ctx.clock.monotonic()
        return watch.ours(self._ctx.owner) or (
            watch.may_take(now, self._ctx.lease_seconds)
            and (
                room is None
                or room.left(watch.queue.name, expired=not watch.released())
                or watch.orphaned(now, self._ctx.lease_seconds)
            )
        )

    def _acquire(self, watches: Sequence[LeaseWatch]) -> list[LeaseWatch]:
        """Return the watches of leases that have changed since they were observed."""
        sent_at = self._ctx.clock.monotonic()
        answers = self._ctx.store.acquire_all(watches, self._ctx.owner)
        overtaken: list[LeaseWatch] = []
        refused: dict[str, dict[ShardRef, LowkiqError]] = {}
        self._refused.difference_update(watch.shard for watch in watches)
        for watch, answer in zip(watches, answers, strict=True):
            if not isinstance(answer, (Lease, NotOwner)):
                self._refused.add(watch.shard)
            if isinstance(answer, StoreUnavailable):
                self._doubt(watch.shard, sent_at)
            elif isinstance(answer, Lease):
                owned = OwnedShard(watch.queue, answer, self._ctx.lease_seconds, sent_at)
                self._table.add(owned, self._emptiest_lane())
            elif isinstance(answer, NotOwner):
                overtaken.append(watch)
            elif isinstance(answer, (ShardDamaged, QueueResharded)):
                self._table.postpone([watch.shard], sent_at + _seconds_to_retry(watch.shard, answer))
            else:
                refused.setdefault(watch.queue.name, {})[watch.shard] = answer
        for queue, errors in refused.items():
            error = next(iter(errors.values()))
            subject = shard_names(errors) if isinstance(error, StoreError) else f"queue {queue}"
            logger.error("%s is not served: %s", subject, error)
            self._table.postpone(self._table.shards_of(queue), sent_at + REFUSED_RETRY)
        return overtaken

    def _emptiest_lane(self) -> Lane | None:
        """Return the lane for a new shard; None for the one that it was dealt to."""
        if not self._membership.shared:
            return None
        return self._lanes[least_loaded_lane([lane.load for lane in self._lanes])]


def _seconds_to_retry(shard: ShardRef, refused: ShardDamaged | QueueResharded) -> float:
    if isinstance(refused, QueueResharded):
        # The next heartbeat reads the stored number of shards.
        return RESHARDED_RETRY
    if isinstance(refused, ShardRepairing):
        logger.info("shard %s is not served yet: %s", shard, refused)
        return REPAIRING_RETRY
    logger.error("shard %s is not served: %s", shard, refused)
    return DAMAGED_RETRY


class AcquisitionProgress:
    """Logs how far a node is while it acquires more shards than one turn can."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When the next line is due (monotonic); None when no shard is left to acquire.
        self._next: float | None = None
        self._logged = False
        self._goal = 0

    def begin(self, owned: int, free: int) -> None:
        """Record that a node with ``owned`` shards is about to acquire ``free`` more."""
        self._goal = owned + free
        if not free:
            self._next, self._logged = None, False
        elif self._next is None:
            self._next = self._clock.monotonic() + PROGRESS_INTERVAL

    def log(self, owned: int) -> None:
        """Log the number of ``owned`` shards when a line is due."""
        assert self._next is not None
        now, done = self._clock.monotonic(), owned >= self._goal
        if now >= self._next or (done and self._logged):
            logger.info("%s of %s shards taken", f"{owned:,}", f"{self._goal:,}")
            self._next, self._logged = now + PROGRESS_INTERVAL, not done
