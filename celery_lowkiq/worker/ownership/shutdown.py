"""How a node that ends gives up what it has."""

from __future__ import annotations

import logging

from celery_lowkiq.rules.errors import NotOwner

from ..lane.lane import Lane
from ..owned_shard import Held
from ..ports import Store
from .lease_table import Holdings
from .membership import Membership

logger = logging.getLogger("celery_lowkiq.worker")


class Farewell:
    """Each shard goes when its lane has ended; every step may raise StoreError, and is taken again then."""

    def __init__(self, store: Store, holdings: Holdings, membership: Membership | None) -> None:
        self._store = store
        self._holdings = holdings
        self._membership = membership
        #: The process ends, and all runs with it: no lane is waited for.
        self.at_once = False

    @property
    def done(self) -> bool:
        """Whether nothing of this node is left for others to see."""
        return self._membership is None and not self._holdings.leases()

    def leave(self) -> None:
        """Take no part in the sharing any more."""
        if self._membership is not None:
            self._membership.leave()
            self._membership = None

    def forget_crashed(self) -> None:
        """What a crashed lane was running counts as a crash: that lease is not marked as stopping."""
        for held in self._holdings.leases():
            if self._lane_of(held).crashed and self._holdings.works_on(held.shard):
                self._holdings.drop(held)

    def release(self) -> None:
        """Release the shards of lanes that have ended."""
        for held in self._holdings.leases():
            if self.at_once or self._lane_of(held).ended:
                self._release(held)

    def _release(self, held: Held) -> None:
        if self.at_once:
            held.lost.set()
        try:
            released = self._store.release(held.lease, unsettled=self.at_once)
        except NotOwner:
            released = True
        if not released:
            logger.warning("shard %s keeps unsettled jobs: its next owner recovers them", held.shard)
        self._holdings.drop(held)

    def _lane_of(self, held: Held) -> Lane:
        return self._holdings.lane_of[held.shard]
