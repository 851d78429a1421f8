"""Releases the shards of a node that stops."""

from __future__ import annotations

from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.loggers import worker_logger as logger

from ..owned_shard import OwnedShard
from ..ports import Store
from .lease_table import LeaseTable
from .membership import Membership


class ShardReleaser:
    """Releases each shard when its lane has ended. Every step may raise StoreError, and is repeated then."""

    def __init__(self, store: Store, table: LeaseTable, membership: Membership | None) -> None:
        self._store = store
        self._table = table
        self._membership = membership
        self._at_once = False

    def release_at_once(self) -> None:
        """Do not wait for lanes from now on: the process ends, and its batches with it."""
        self._at_once = True

    @property
    def done(self) -> bool:
        """Whether other nodes see nothing of this node any more."""
        return self._membership is None and not self._table.owned()

    def leave(self) -> None:
        """Leave the membership."""
        if self._membership is not None:
            self._membership.leave()
            self._membership = None

    def forget_crashed(self) -> None:
        """Forget the shard that a crashed lane was running: its lease is not marked as stopping."""
        for owned in self._table.owned():
            if self._table.lane_of(owned.shard).crashed and self._table.in_use(owned.shard):
                self._table.remove(owned)

    def release(self) -> None:
        """Release the shards of lanes that have ended."""
        for owned in self._table.owned():
            if self._at_once or self._table.lane_of(owned.shard).ended:
                self._release(owned)

    def _release(self, owned: OwnedShard) -> None:
        if self._at_once:
            owned.lost.set()
        try:
            released = self._store.release(owned.lease, unsettled=self._at_once)
        except NotOwner:
            released = True
        if not released:
            logger.warning("shard %s keeps unsettled jobs: its next owner recovers them", owned.shard)
        self._table.remove(owned)
