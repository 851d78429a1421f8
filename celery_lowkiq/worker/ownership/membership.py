"""Who else serves the queues: heartbeats, judged by one's own clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.balance import Member, Room, quotas, to_give_up
from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.models import QueueSpec, ShardRef

from ..ports import Store
from .heartbeat import Heartbeat


class Membership:
    """Moves this node's heartbeat, watches those of others, and says what each node's share is."""

    def __init__(
        self,
        store: Store,
        heartbeat: Heartbeat,
        queues: Sequence[QueueSpec],
        clock: Clock,
        *,
        owner: str,
        lanes: int,
        lease_seconds: float,
        served: Collection[str],
    ) -> None:
        """``served``: names of those ``queues`` in which the node takes part at first."""
        self._store = store
        self._heartbeat = heartbeat
        self._queues = {queue.name: queue for queue in queues}
        self._clock = clock
        self._owner = owner
        self._lanes = lanes
        self._seconds = lease_seconds
        self._seen: dict[str, dict[str, Member]] = {name: {} for name in self._queues if name in served}

    def learn(self, queues: Mapping[str, QueueSpec]) -> None:
        """Know more queues, by name; the node takes no part in them yet."""
        self._queues.update(queues)

    def attend(self, queues: Collection[str]) -> None:
        """Take part in these queues only, from now on. Raises StoreError; then nothing has changed here."""
        for queue in self._seen.keys() - queues:
            self._leave(queue)
        self._seen = {name: self._seen.get(name, {}) for name in self._queues if name in queues}

    def meet(self) -> None:
        """Beat once, look at the others, and remove heartbeats that ended long ago. Raises StoreError."""
        beats = self._heartbeat.beat(list(self._seen))
        now = self._clock.monotonic()
        for queue, found in zip(list(self._seen), beats, strict=True):
            known = self._seen[queue]
            self._seen[queue] = {
                name: known[name].look(counter, now) if name in known else Member(name, lanes, counter, now)
                for name, (lanes, counter) in found.items()
                if name != self._owner
            }
            gone = [member for member in self._seen[queue].values() if member.gone(now, self._seconds)]
            if gone:
                self._store.forget_members(queue, [(member.name, member.lanes) for member in gone])

    def leave(self) -> None:
        """Take no part any more. Raises StoreError."""
        for queue in self._seen:
            self._leave(queue)

    def _leave(self, queue: str) -> None:
        self._store.forget_members(queue, [(self._owner, self._lanes)])

    def lanes_by_node(self, queue: str) -> dict[str, int]:
        """The nodes that serve a queue, this one included."""
        now = self._clock.monotonic()
        others = (member for member in self._seen[queue].values() if member.alive(now, self._seconds))
        return {self._owner: self._lanes, **{member.name: member.lanes for member in others}}

    def room(self, held: Sequence[ShardRef]) -> Room:
        """How many more shards a node that has these may have."""
        return Room(self._pools(), held)

    def surplus(self, held: Sequence[ShardRef], busy: frozenset[ShardRef]) -> list[ShardRef]:
        """What a node that has these, and works on the ``busy`` ones now, is to give up."""
        return [
            shard
            for queues, quota in self._pools()
            for shard in to_give_up(_of_queues(held, queues), busy, quota)
        ]

    def _pools(self) -> list[tuple[frozenset[str], int]]:
        """Queues that the same nodes serve, and how many of all their shards are this node's share."""
        by_nodes: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for queue in self._seen:
            nodes = tuple(sorted(self.lanes_by_node(queue).items()))
            by_nodes.setdefault(nodes, []).append(queue)
        return [
            (frozenset(queues), quotas(sum(self._queues[q].shards for q in queues), dict(nodes))[self._owner])
            for nodes, queues in by_nodes.items()
        ]


def _of_queues(shards: Sequence[ShardRef], queues: frozenset[str]) -> list[ShardRef]:
    """Those shards that belong to the queues."""
    return [shard for shard in shards if shard.queue in queues]
