"""Which shards a node takes: looked at while others have them, and acquired when they are free."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from celery_lowkiq.rules.balance import Room, lane_for
from celery_lowkiq.rules.claims import ToAcquire
from celery_lowkiq.rules.errors import LowkiqError, NotOwner, ShardDamaged, ShardRepairing, StoreUnavailable
from celery_lowkiq.rules.models import Lease, ShardRef
from celery_lowkiq.rules.ownership import Watch
from celery_lowkiq.rules.text import shard_names

from ..context import Surroundings
from ..lane.lane import Lane
from ..owned_shard import Held
from .lease_table import Holdings
from .membership import Membership
from .progress import Progress

logger = logging.getLogger("celery_lowkiq.worker")

#: After a refusal that only people can mend (another shard count) a queue is tried again so often, in s.
REFUSED_AGAIN = 60.0
#: The same of a shard that is damaged: it costs one question.
DAMAGED_AGAIN = 10.0
#: The same while a shard is being repaired.
REPAIRING_AGAIN = 1.0
#: So many shards are acquired in one round trip: some 20 ms of work for Redis.
SLICE = 500


class Taking:
    """With ``membership`` up to the node's share, each shard for the lane that has the fewest; without it all
    shards, each for the lane that it was dealt to.
    """

    def __init__(
        self,
        around: Surroundings,
        holdings: Holdings,
        *,
        owner: str,
        lanes: Sequence[Lane],
        membership: Membership | None,
    ) -> None:
        self._store = around.store
        self._clock = around.clock
        self._seconds = around.lease_seconds
        self._holdings = holdings
        self._owner = owner
        self._lanes = lanes
        self._membership = membership
        self._progress = Progress(around.clock)
        #: Shards that wait out a lease of before a restart, failover or flush of Redis, and until when
        #: (monotonic).
        self.free_at: dict[ShardRef, float] = {}

    def look(self, shards: Sequence[ShardRef]) -> None:
        """See how the leases of others fare. Raises StoreError."""
        states = self._store.observe(shards)
        now = self._clock.monotonic()
        watches = self._holdings.watches
        before, self.free_at = self.free_at, {}
        for shard, state in zip(shards, states, strict=True):
            watch = watches[shard] = watches[shard].look(state, now)
            free_at = watch.waits_until(self._seconds)
            if free_at is not None and free_at > now:
                self.free_at[shard] = free_at
        self._tell_of_waits(self.free_at.keys() - before.keys(), now)

    def _tell_of_waits(self, shards: Collection[ShardRef], now: float) -> None:
        """Once for each time that a shard has to wait."""
        if shards:
            logger.info(
                "Redis restarted, failed over or lost data: a former owner may still work, "
                "free in %.1f s: %s",
                max(self.free_at[shard] for shard in shards) - now,
                shard_names(shards),
            )

    def next_look(self, shards: Sequence[ShardRef]) -> float:
        """Seconds until looking again at one of them is of use; infinite without any."""
        now = self._clock.monotonic()
        looks = (self._holdings.watches[shard].next_look(now, self._seconds) for shard in shards)
        return min(looks, default=float("inf"))

    def take(self, shards: Iterable[ShardRef], go_on: Callable[[], bool]) -> bool:
        """Acquire those that are free, a slice at a time for as long as ``go_on()``; whether that was all.
        A refusal puts off all shards of the queue, damage of a shard only that one. Raises StoreError when
        Redis is away.
        """
        free = self._free_ones(shards)
        self._progress.begin(len(self._holdings.held), len(free))
        for start in range(0, len(free), SLICE):
            if start and not go_on():
                return False
            self._acquire(free[start : start + SLICE])
            self._progress.tell(len(self._holdings.held))
        return True

    def _free_ones(self, shards: Iterable[ShardRef]) -> list[Watch]:
        """In their order, up to the node's share."""
        room = None if self._membership is None else self._membership.room(list(self._holdings.held))
        found = []
        for shard in shards:
            watch = self._holdings.watches[shard]
            if self._free(watch, room):
                found.append(watch)
                if room is not None:
                    room.fill(shard.queue)
        return found

    def _free(self, watch: Watch, room: Room | None) -> bool:
        """Never while a thread of this node still works on an older epoch."""
        if watch.shard in self._holdings.held or self._holdings.works_on(watch.shard):
            return False
        now = self._clock.monotonic()
        return watch.ours(self._owner) or (
            watch.may_take(now, self._seconds)
            and (watch.orphaned(now, self._seconds) or room is None or room.left(watch.queue.name))
        )

    def _acquire(self, watches: Sequence[Watch]) -> None:
        wanted = [ToAcquire(one.queue, one.shard, one.seen, one.known_epoch) for one in watches]
        sent_at = self._clock.monotonic()
        answers = self._store.acquire_all(wanted, self._owner)
        refused: dict[str, LowkiqError] = {}
        for watch, answer in zip(watches, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                raise answer
            if isinstance(answer, Lease):
                self._hold(Held(watch.queue, answer, self._seconds, sent_at))
            elif isinstance(answer, ShardRepairing):
                logger.info("shard %s is not served yet: %s", watch.shard, answer)
                self._put_off([watch.shard], sent_at + REPAIRING_AGAIN)
            elif isinstance(answer, ShardDamaged):
                logger.error("shard %s is not served: %s", watch.shard, answer)
                self._put_off([watch.shard], sent_at + DAMAGED_AGAIN)
            elif not isinstance(answer, NotOwner):
                refused.setdefault(watch.queue.name, answer)
        for queue, error in refused.items():
            logger.error("queue %s is not served: %s", queue, error)
            of_queue = [shard for shard in self._holdings.watches if shard.queue == queue]
            self._put_off(of_queue, sent_at + REFUSED_AGAIN)

    def _hold(self, held: Held) -> None:
        self._holdings.add(held)
        if self._membership is not None:
            lane = self._lanes[lane_for([lane.load for lane in self._lanes])]
            self._holdings.lane_of[held.shard] = lane
        self._holdings.lane_of[held.shard].serve(held)

    def _put_off(self, shards: Sequence[ShardRef], until: float) -> None:
        watches = self._holdings.watches
        for shard in shards:
            watches[shard] = replace(watches[shard], not_before=until)
