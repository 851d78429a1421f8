"""Follows the stored numbers of shards: takes up added shards, and gives up removed ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from celery_lowkiq.rules.claims import Due, OpenClaims
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.resizing import Resize, resize

from ..lane.lane import Lane
from ..ports import Store
from .lease_table import LeaseTable

#: Deals the shards of queues to the lanes of the node.
Deal = Callable[[Sequence[QueueSpec]], Mapping[ShardRef, "tuple[QueueSpec, Lane]"]]


class Resizing:
    """A node with a fixed splitter deals its shards by the first stored numbers that it reads, once."""

    def __init__(
        self, store: Store, table: LeaseTable, queues: dict[str, QueueSpec], deal: Deal, *, shared: bool
    ) -> None:
        """``queues``: all by name; the whole of ownership reads them here, and this keeps them as stored."""
        self._store = store
        self._table = table
        self._queues = queues
        self._deal = deal
        self._shared = shared
        #: The stored numbers as they were last read, by queue.
        self._routes: dict[str, str] = {}

    def follow(self, routes: Mapping[str, str]) -> None:
        """Apply the stored numbers of shards, by queue."""
        changed = {name: route for name, route in routes.items() if route != self._routes.get(name)}
        changes = [c for name, route in changed.items() if (c := resize(self._queues[name], route))]
        for change in changes:
            self._log(change)
            self._queues[change.queue.name] = change.queue
            self._table.update_queue(change.queue)
            if self._shared:
                self._apply(change)
        if changes and not (self._shared or self._routes):
            self._table.deal_again(self._deal(list(self._queues.values())))
        self._routes |= changed

    def leave_given_elsewhere(self, away: Collection[ShardRef]) -> None:
        """Leave shards of moving queues whose lease another server gave, to be acquired anew.

        A failover may have lost claims of what runs, so nothing leaves such a shard (``export.lua``) until
        its batch has ended and this server has given a lease. ``away``: shards whose master is away.
        """
        moving = [
            owned
            for owned in self._table.owned()
            if owned.queue.former_shards is not None and not owned.leaving and owned.shard not in away
        ]
        states = self._store.observe([owned.shard for owned in moving]) if moving else []
        for owned, state in zip(moving, states, strict=True):
            # Any other server refuses the release.
            if state is not None and state.given_on != state.server == owned.lease.server:
                self._table.leave(owned.shard)

    def _apply(self, change: Resize) -> None:
        dealt = self._deal([change.queue])
        self._table.add_shards({shard: dealt[shard] for shard in change.added})
        self._table.retire(change.removed)

    def _log(self, change: Resize) -> None:
        queue, declared = change.queue, self._queues[change.queue.name].shards
        if queue.former_shards is not None:
            logger.info(
                "queue %s is moving from %d to %d shards", queue.name, queue.former_shards, queue.shards
            )
        if queue.name not in self._routes:
            if queue.shards != declared:
                logger.warning(
                    "queue %s has %d shards, the code declares %d; the stored number applies",
                    queue.name,
                    queue.shards,
                    declared,
                )
        elif self._shared:
            if queue.former_shards is None:
                logger.info("queue %s has %d shards now", queue.name, queue.shards)
        elif change.added or change.removed:
            logger.warning(
                "queue %s has %d shards now, but the splitter of this node deals shards once, when it "
                "starts: restart the node",
                queue.name,
                queue.shards,
            )

    def give_up(self) -> None:
        """Leave removed shards in which no job is left, and forget those not owned. Raises StoreError."""
        if not self._table.retired:
            return
        self._table.drop_retired()
        shards = [shard for shard in self._table.staying() if shard in self._table.retired]
        if not shards:
            return
        no_claims = [OpenClaims()] * len(shards)
        dues = self._store.next_due(shards, no_claims, [False] * len(shards))
        for shard, due in zip(shards, dues, strict=True):
            # The lane reports a damage.
            if isinstance(due, Due) and due.next_due is None:
                self._table.leave(shard)
