"""Which shards a node gives up while it goes on, and on which lane each of the others lies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from celery_lowkiq.rules.balance import moves
from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.models import ShardRef

from ..lane.lane import Lane
from ..owned_shard import Held
from ..ports import Store
from .heartbeat import Heartbeat
from .lease_table import Holdings
from .membership import Membership

logger = logging.getLogger("celery_lowkiq.worker")


class Sharing:
    """With ``membership`` other nodes get their share, and lanes get equal parts; without it a node keeps
    what it has of the queues that it serves, each shard on its lane.
    """

    def __init__(
        self,
        store: Store,
        holdings: Holdings,
        *,
        lanes: Sequence[Lane],
        heartbeat: Heartbeat,
        membership: Membership | None,
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._lanes = lanes
        self._heartbeat = heartbeat
        self._membership = membership

    def share(self, served: Collection[str], go_on: Callable[[], bool]) -> bool:
        """Beat, and give up, one finished batch at a time, what is other nodes' share, for as long as
        ``go_on()``; whether that was all. Raises StoreError.
        """
        holdings = self._holdings
        if self._membership is not None:
            self._membership.meet()
            staying = [shard for shard in list(holdings.held) if shard not in holdings.leaving]
            for shard in self._membership.surplus(staying, self._busy()):
                self._give(shard)
        else:
            self._heartbeat.beat([])
        for shard in [held.shard for held in holdings.leases()]:
            if shard.queue not in served and shard not in holdings.leaving:
                self._give(shard)
        for shard in sorted(holdings.leaving):
            if not go_on():
                return False
            idle = not holdings.works_on(shard)
            # A lane may have lost it a moment ago.
            held = holdings.held.get(shard)
            if idle and held is not None:
                self._hand_over(held)
        return True

    def level(self) -> None:
        """Shards change lanes only when nothing of them is in a lane's hands."""
        loads = [lane.load for lane in self._lanes]
        if self._membership is None or max(loads, default=0) - min(loads, default=0) <= 1:
            return
        lane_of = self._holdings.lane_of
        for shard, lane in moves([lane.shards() for lane in self._lanes], self._busy()):
            lane_of[shard].drop(shard)
            if not self._holdings.works_on(shard):
                lane_of[shard] = self._lanes[lane]
            held = self._holdings.held.get(shard)
            if held is not None:
                lane_of[shard].serve(held)

    def _busy(self) -> frozenset[ShardRef]:
        return frozenset[ShardRef]().union(*(lane.working for lane in self._lanes))

    def _give(self, shard: ShardRef) -> None:
        self._holdings.leaving.add(shard)
        self._holdings.lane_of[shard].drop(shard)

    def _hand_over(self, held: Held) -> None:
        try:
            released = self._store.release(held.lease)
        except NotOwner:
            logger.info("shard %s was given up: it has changed hands before", held.shard)
            released = True
        if released:
            self._holdings.part_with(held)
        else:
            # Something of it is unsettled: the lane's next claim puts that back.
            self._holdings.leaving.discard(held.shard)
            self._holdings.lane_of[held.shard].serve(held)
