"""Which shards a node takes: looked at while others have them, and acquired when they are free."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from celery_lowkiq.rules.balance import lane_for
from celery_lowkiq.rules.errors import (
    FormatMismatch,
    NotOwner,
    ShardCountMismatch,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.ownership import Watch

from .held import Held
from .holdings import Holdings
from .lane import Lane
from .membership import Membership
from .surroundings import Surroundings

logger = logging.getLogger("celery_lowkiq.worker")

#: After a refusal that only people can mend (another shard count) a queue is tried again so often, in s.
REFUSED_AGAIN = 60.0


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

    def look(self, shards: Sequence[ShardRef]) -> None:
        """See how the leases of others fare. Raises StoreError."""
        states = self._store.observe(shards)
        now = self._clock.monotonic()
        watches = self._holdings.watches
        for shard, state in zip(shards, states, strict=True):
            watches[shard] = watches[shard].look(state, now)

    def next_look(self, shards: Sequence[ShardRef]) -> float:
        """Seconds until looking again at one of them is of use; infinite without any."""
        now = self._clock.monotonic()
        looks = (self._holdings.watches[shard].next_look(now, self._seconds) for shard in shards)
        return min(looks, default=float("inf"))

    def take_if_free(self, shard: ShardRef) -> None:
        """Raises StoreError when Redis is away; a refusal puts off all shards of the queue."""
        watch = self._holdings.watches[shard]
        if self._free(watch):
            self._take(watch)

    def _free(self, watch: Watch) -> bool:
        """Never while a thread of this node still works on an older epoch."""
        if watch.shard in self._holdings.held or self._holdings.works_on(watch.shard):
            return False
        now = self._clock.monotonic()
        return watch.ours(self._owner) or (
            watch.may_take(now, self._seconds)
            and (watch.orphaned(now, self._seconds) or self._below_quota(watch.shard))
        )

    def _below_quota(self, shard: ShardRef) -> bool:
        return self._membership is None or self._membership.below_quota(shard, list(self._holdings.held))

    def _take(self, watch: Watch) -> None:
        sent_at = self._clock.monotonic()
        try:
            lease = self._store.acquire(watch.queue, watch.shard, self._owner, watch.seen, watch.known_epoch)
        except NotOwner:
            return
        except StoreUnavailable:
            raise
        except (ShardCountMismatch, FormatMismatch, StoreError) as error:
            logger.error("queue %s is not served: %s", watch.queue.name, error)
            self._put_off(watch.queue.name, sent_at + REFUSED_AGAIN)
            return
        held = Held(watch.queue, lease, self._seconds, sent_at)
        self._holdings.add(held)
        if self._membership is not None:
            loads = [len(lane.shards()) for lane in self._lanes]
            self._holdings.lane_of[watch.shard] = self._lanes[lane_for(loads)]
        self._holdings.lane_of[watch.shard].serve(held)

    def _put_off(self, queue: str, until: float) -> None:
        watches = self._holdings.watches
        for shard, watch in watches.items():
            if shard.queue == queue:
                watches[shard] = replace(watch, not_before=until)
