"""What a node has and knows of the shards that it wants: leases, what was seen of others', lanes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.ownership import Watch

from ..lane.lane import Lane
from ..owned_shard import Held


class Holdings:
    """The ownership thread alone changes them, but for a lost lease: whoever is told first parts with it."""

    def __init__(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        #: The lane that serves a shard, or would.
        self.lane_of: dict[ShardRef, Lane] = {}
        self.watches: dict[ShardRef, Watch] = {}
        self.learn(dealt)
        self.held: dict[ShardRef, Held] = {}
        #: Shards that are given up, each when its batch has ended.
        self.leaving: set[ShardRef] = set()
        self._lock = threading.Lock()

    def learn(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        """Know more shards."""
        self.lane_of.update((shard, lane) for shard, (_, lane) in dealt.items())
        self.watches.update((shard, Watch(queue, shard)) for shard, (queue, _) in dealt.items())

    def leases(self) -> list[Held]:
        """All that the node has now."""
        with self._lock:
            return list(self.held.values())

    def wanted(self, queues: Collection[str]) -> list[ShardRef]:
        """The shards of these queues that others have, or nobody."""
        return [shard for shard in self.watches if shard.queue in queues and shard not in self.held]

    def works_on(self, shard: ShardRef) -> bool:
        """Whether a thread of this node has something of the shard in hand, under whatever epoch."""
        return shard in self.lane_of[shard].working

    def add(self, held: Held) -> None:
        """A shard was taken."""
        with self._lock:
            self.held[held.shard] = held

    def part_with(self, held: Held) -> bool:
        """The shard is, or may be, another node's: it is watched again. Whether the lease was still here."""
        with self._lock:
            if self.held.get(held.shard) is not held:
                return False
            held.lost.set()
            del self.held[held.shard]
            self.leaving.discard(held.shard)
            self.watches[held.shard] = Watch(held.queue, held.shard, known_epoch=held.lease.epoch)
            return True

    def drop(self, held: Held) -> None:
        """Have nothing more to do with a shard: the node ends."""
        with self._lock:
            self.held.pop(held.shard, None)

    def doubt(self, now: float) -> None:
        """Tell the runs of shards that another node may have by now (monotonic, s). What was seen of other
        owners is worth nothing either.
        """
        self.watches = {shard: watch.doubted() for shard, watch in self.watches.items()}
        for held in self.leases():
            if now >= held.deadline:
                held.lost.set()
