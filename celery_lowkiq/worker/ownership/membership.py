"""Which nodes serve which queues, from their heartbeats, timed by this node's monotonic clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.balance import Member, QuotaRoom, quotas, surplus_shards
from celery_lowkiq.rules.models import QueueSpec, ShardRef

from ..context import WorkerContext
from .heartbeat import Heartbeat


class Membership:
    """Sends this node's heartbeat, watches those of others, and computes each node's share of the shards."""

    def __init__(
        self,
        ctx: WorkerContext,
        heartbeat: Heartbeat,
        queues: Sequence[QueueSpec],
        *,
        lanes: int,
        served: Collection[str],
    ) -> None:
        """``served``: names of those ``queues`` in which the node takes part at first."""
        self._store = ctx.store
        self._clock = ctx.clock
        self._owner = ctx.owner
        self._lease_seconds = ctx.lease_seconds
        self._heartbeat = heartbeat
        self._queues = {queue.name: queue for queue in queues}
        self._lanes = lanes
        self._others: dict[str, dict[str, Member]] = {name: {} for name in self._queues if name in served}

    def add_queues(self, queues: Mapping[str, QueueSpec]) -> None:
        """Add queues by name; the node takes part in them after :meth:`serve`."""
        self._queues.update(queues)

    def serve(self, queues: Collection[str]) -> None:
        """Take part in these queues only. Raises StoreError before anything changes."""
        for queue in self._others.keys() - queues:
            self._leave(queue)
        self._others = {name: self._others.get(name, {}) for name in self._queues if name in queues}

    def update(self) -> None:
        """Send the heartbeat, read those of others, and remove dead ones. Raises StoreError."""
        beats = self._heartbeat.beat(list(self._others))
        now = self._clock.monotonic()
        for queue, found in zip(list(self._others), beats, strict=True):
            seen = self._others[queue]
            self._others[queue] = {
                name: seen[name].look(counter, now) if name in seen else Member(name, lanes, counter, now)
                for name, (lanes, counter) in found.items()
                if name != self._owner
            }
            gone = [one for one in self._others[queue].values() if one.gone(now, self._lease_seconds)]
            if gone:
                self._store.forget_members(queue, [(member.name, member.lanes) for member in gone])

    def leave(self) -> None:
        """Remove this node's heartbeats. Raises StoreError."""
        for queue in self._others:
            self._leave(queue)

    def _leave(self, queue: str) -> None:
        self._store.forget_members(queue, [(self._owner, self._lanes)])

    def lanes_by_node(self, queue: str) -> dict[str, int]:
        """Return the living nodes that serve a queue, including this one."""
        now = self._clock.monotonic()
        others = (one for one in self._others[queue].values() if one.alive(now, self._lease_seconds))
        return {self._owner: self._lanes, **{member.name: member.lanes for member in others}}

    def room(self, owned: Sequence[ShardRef]) -> QuotaRoom:
        """Return how many more shards a node may have that owns these."""
        return QuotaRoom(self._pools(), owned)

    def surplus(self, owned: Sequence[ShardRef], busy: frozenset[ShardRef]) -> list[ShardRef]:
        """Return the shards that a node is to release that owns these and works on the ``busy`` ones."""
        return [
            shard
            for queues, quota in self._pools()
            for shard in surplus_shards([one for one in owned if one.queue in queues], busy, quota)
        ]

    def _pools(self) -> list[tuple[frozenset[str], int]]:
        """Queues that the same nodes serve, and this node's share of all their shards."""
        by_nodes: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for queue in self._others:
            nodes = tuple(sorted(self.lanes_by_node(queue).items()))
            by_nodes.setdefault(nodes, []).append(queue)
        return [
            (frozenset(queues), quotas(sum(self._queues[q].shards for q in queues), dict(nodes))[self._owner])
            for nodes, queues in by_nodes.items()
        ]
