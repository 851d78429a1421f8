"""Gives surplus shards to other nodes, and levels the shards of this node over its lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from celery_lowkiq.rules.balance import moves
from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import ShardRef

from ..lane.lane import Lane
from ..owned_shard import OwnedShard
from ..ports import Store
from .lease_table import LeaseTable
from .membership import Membership


class Rebalancing:
    """Unless shards are shared, a node keeps those of the queues that it serves, each on its lane."""

    def __init__(
        self, store: Store, table: LeaseTable, *, lanes: Sequence[Lane], membership: Membership
    ) -> None:
        self._store = store
        self._table = table
        self._lanes = lanes
        self._membership = membership

    def share(self, served: Collection[str], away: Collection[ShardRef], go_on: Callable[[], bool]) -> bool:
        """Release surplus shards, each when its batch has ended, while ``go_on()``.

        A surplus shard is served until its turn comes, since a release may wait for a master that is away.
        ``away``: shards whose leases were not renewed, since their master is away; they are released later.
        Returns whether all were tried. Raises StoreError.
        """
        table = self._table
        for shard in table.staying():
            if shard.queue not in served:
                table.leave(shard)
        leaving = [owned.shard for owned in table.leaving()]
        surplus = self._membership.surplus(table.without_retired(table.staying()), self._busy())
        for shard in (*surplus, *leaving):
            if not go_on():
                return False
            owned = table.leave(shard)
            if not table.in_use(shard) and shard not in away:
                self._release(owned)
        return True

    def level(self) -> None:
        """Move idle shards between lanes until the lanes differ by one shard at most."""
        loads = [lane.load for lane in self._lanes]
        if not self._membership.shared or max(loads, default=0) - min(loads, default=0) <= 1:
            return
        for shard, lane in moves([lane.shards() for lane in self._lanes], self._busy()):
            self._table.move(shard, self._lanes[lane])

    def _busy(self) -> frozenset[ShardRef]:
        return frozenset[ShardRef]().union(*(lane.working for lane in self._lanes))

    def _release(self, owned: OwnedShard) -> None:
        owned.may_be_released = True
        try:
            released: bool | None = self._store.release(owned.lease)
        except NotOwner:
            logger.info("shard %s needs no release: it has changed hands before", owned.shard)
            released = True
        if released:
            self._table.forget(owned)
        elif released is not None:
            # A claim of it is unsettled: the lane's next claim returns those jobs.
            self._table.stay(owned)
