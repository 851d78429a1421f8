"""Which nodes serve which queues, from their heartbeats, timed by this node's monotonic clock."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.balance import Member, Pool, QuotaRoom, quotas, surplus_shards
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef

from ..context import WorkerContext
from .heartbeat import Heartbeat


class Membership:
    """Sends this node's heartbeat, watches those of others, and computes each node's share of the shards."""

    def __init__(
        self,
        ctx: WorkerContext,
        heartbeat: Heartbeat,
        queues: Mapping[str, QueueSpec],
        *,
        lanes: int,
        served: Collection[str],
        shared: bool,
    ) -> None:
        """``queues``: all by name, may change; ``served``: those in which the node takes part at first.

        Unless ``shared``, it takes part in none: a fixed splitter has dealt the shards, without quotas.
        """
        self._ctx = ctx
        self._heartbeat = heartbeat
        self._queues = queues
        self._lanes = lanes
        self.shared = shared
        self._others: dict[str, dict[str, Member]] = {}
        #: Of each queue whose heartbeats the last update read: the monotonic time since which all have.
        self._read_since: dict[str, float] = {}
        self.serve(served)

    def serve(self, queues: Collection[str]) -> None:
        """Take part in these queues only. Raises StoreError before anything changes."""
        for queue in self._others.keys() - queues:
            self._leave(queue)
        if self.shared:
            self._others = {name: self._others.get(name, {}) for name in self._queues if name in queues}

    def update(self) -> dict[str, str]:
        """Send the heartbeat, read those of others, and remove dead ones. Raises StoreError.

        Returns the stored number of shards of each queue in which the node takes part; of all, unless shared.
        """
        queues = list(self._others if self.shared else self._queues)
        # While this node can read no heartbeat, others may have no place for theirs.
        read_since, self._read_since = self._read_since, {}
        beats = self._heartbeat.beat(queues, self._lanes if self.shared else 0)
        now = self._ctx.clock.monotonic()
        members = beats.members if self.shared else []
        for queue, found in zip(list(self._others), members, strict=True):
            if found is None:
                continue
            self._read_since[queue] = read_since.get(queue, now)
            seen = self._others[queue]
            self._others[queue] = {
                name: seen[name].observed(turn, now)
                if name in seen
                else Member(name, lanes, turn, now, first_seen=now)
                for name, (lanes, turn) in found.items()
                if name != self._ctx.owner
            }
            gone = [one for one in self._others[queue].values() if one.gone(now, self._ctx.lease_seconds)]
            if gone:
                # The next turn tries again. On a cluster, the shards of other masters must not wait for it.
                with contextlib.suppress(StoreUnavailable):
                    self._ctx.store.forget_members(queue, [(member.name, member.lanes) for member in gone])
        return {queue: r for queue, r in zip(queues, beats.routes, strict=True) if r is not None}

    def leave(self) -> None:
        """Take part in no queue from now on. Raises StoreError."""
        for queue in self._others:
            self._leave(queue)
        self._others = {}

    def _leave(self, queue: str) -> None:
        self._ctx.store.forget_members(queue, [(self._ctx.owner, self._lanes)])

    def lanes_by_node(self, queue: str) -> dict[str, int]:
        """Return the living nodes that serve a queue, including this one."""
        now = self._ctx.clock.monotonic()
        others = (one for one in self._others[queue].values() if one.alive(now, self._ctx.lease_seconds))
        return {self._ctx.owner: self._lanes, **{member.name: member.lanes for member in others}}

    def heartbeat(self, queue: str, node: str) -> Member | None:
        """Return the last heartbeat of another node in a queue; None for a node that is not there."""
        return self._others.get(queue, {}).get(node)

    def room(self, owned: Sequence[ShardRef]) -> QuotaRoom | None:
        """Return how many more shards a node may have that owns these; None for no quota."""
        return QuotaRoom(self._pools(), owned) if self.shared else None

    def surplus(self, owned: Sequence[ShardRef], busy: frozenset[ShardRef]) -> list[ShardRef]:
        """Return the shards that a node is to release that owns these and works on the ``busy`` ones."""
        return [
            shard
            for pool in self._pools()
            for shard in surplus_shards([one for one in owned if one.queue in pool.queues], busy, pool.quota)
        ]

    def _pools(self) -> list[Pool]:
        by_nodes: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for queue in self._others:
            nodes = tuple(sorted(self.lanes_by_node(queue).items()))
            by_nodes.setdefault(nodes, []).append(queue)
        return [self._pool(queues, dict(nodes)) for nodes, queues in by_nodes.items()]

    def _pool(self, queues: Sequence[str], lanes: Mapping[str, int]) -> Pool:
        now, lease_seconds, owner = self._ctx.clock.monotonic(), self._ctx.lease_seconds, self._ctx.owner
        shards = sum(self._queues[queue].layout.count for queue in queues)
        others = [one for queue in queues for one in self._others[queue].values()]
        new = {one.name for one in others if one.is_new(now, lease_seconds)}
        silent = self._silent(queues)

        def quota_without(names: Collection[str]) -> int:
            return quotas(shards, {name: count for name, count in lanes.items() if name not in names})[owner]

        # Silent ones keep what they have, but take nothing: nobody would serve a shard that was left to them.
        quota = quota_without(silent)
        return Pool(frozenset(queues), quota, max(quota, quota_without(new | silent)))

    def seconds_to_silence(self) -> float:
        """Return the seconds until a node counts as silent whose heartbeat does not move; infinite for none.

        A shard that was released for it has a new owner from then on, and no announcement says so.
        """
        now, lease_seconds = self._ctx.clock.monotonic(), self._ctx.lease_seconds
        times = (
            one.silent_at(lease_seconds, read_since) - now
            for queue, read_since in self._read_since.items()
            if queue in self._others
            for one in self._others[queue].values()
        )
        return min((seconds for seconds in times if seconds > 0), default=math.inf)

    def _silent(self, queues: Sequence[str]) -> set[str]:
        """Return the nodes whose heartbeats are missing in each of these queues that can be read.

        On a cluster, the heartbeats of two queues may lie on two masters, and one of these may be away.
        """
        now, lease_seconds = self._ctx.clock.monotonic(), self._ctx.lease_seconds
        members = [
            (one, self._read_since[queue])
            for queue in queues
            if queue in self._read_since
            for one in self._others[queue].values()
        ]
        heard = {one.name for one, read_since in members if not one.silent(now, lease_seconds, read_since)}
        return {one.name for one, _ in members} - heard
