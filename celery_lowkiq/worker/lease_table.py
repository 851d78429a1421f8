"""The shards of a node: which it owns, the lane of each, and the leases that other nodes have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.shares import Member
from celery_lowkiq.worker.lane import Lane
from celery_lowkiq.worker.owned_shard import OwnedShard


class LeaseTable:
    """Changed by the ownership thread only. Other threads may call :meth:`find_lane`."""

    def __init__(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        self._lanes: dict[ShardRef, Lane] = {}
        self._watches: dict[ShardRef, LeaseWatch] = {}
        self._owned: dict[ShardRef, OwnedShard] = {}
        #: Shards that were lost, each until the node acquires it again.
        self._lost: dict[ShardRef, OwnedShard] = {}
        #: Shards that their queues do not have any more, until the node has given them up.
        self.retired: set[ShardRef] = set()
        self.add_shards(dealt)

    # -- the shards that may be acquired

    def add_shards(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        """Add shards that may be acquired, each with its lane. One that was not given up yet just stays."""
        self.retired -= dealt.keys()
        for shard, (queue, lane) in dealt.items():
            if shard not in self._lanes:
                self._lanes[shard] = lane
                known_epoch = self._lost[shard].lease.epoch if shard in self._lost else 0
                self._watches[shard] = LeaseWatch(queue, shard, known_epoch=known_epoch)

    def deal_again(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        """Replace all shards, of which none was acquired yet."""
        self._lanes.clear()
        self._watches.clear()
        self.add_shards(dealt)

    def update_queue(self, queue: QueueSpec) -> None:
        """Use another number of shards of a queue; a refusal of the former one postpones nothing any more."""
        for shard in self.shards_of(queue.name):
            self._watches[shard] = replace(self._watches[shard], queue=queue, not_before=0.0)
        for owned in self._owned.values():
            if owned.shard.queue == queue.name:
                owned.queue = queue

    def retire(self, shards: Iterable[ShardRef]) -> None:
        """Acquire these shards no more; those that the node owns are served until it leaves them."""
        self.retired.update(shards)

    def drop_retired(self) -> None:
        """Forget the retired shards that the node does not own."""
        for shard in [one for one in self.retired if one not in self._owned and not self.in_use(one)]:
            self.retired.remove(shard)
            del self._lanes[shard], self._watches[shard]

    # -- owned shards and their lanes

    def owned(self) -> list[OwnedShard]:
        return list(self._owned.values())

    def get(self, shard: ShardRef) -> OwnedShard | None:
        """Return an owned shard; None when the node does not own it."""
        return self._owned.get(shard)

    def find_lane(self, shard: ShardRef) -> Lane | None:
        """Return the lane that serves a shard, or would serve it; None for an unknown shard."""
        return self._lanes.get(shard)

    def lane_of(self, shard: ShardRef) -> Lane:
        """Return the lane that serves a shard, or would serve it."""
        return self._lanes[shard]

    def in_use(self, shard: ShardRef) -> bool:
        """True if a thread of this node still works on the shard, under any epoch."""
        return shard in self._lanes[shard].working

    def add(self, owned: OwnedShard, lane: Lane | None = None) -> None:
        """Add an acquired shard to a lane, by default to the one that it was dealt to."""
        before = self._lost.pop(owned.shard, None)
        if before is not None and before.lease == owned.lease:
            # The lease was not another node's meanwhile: Redis takes smaller numbers for outdated requests.
            owned.request = before.request
        self._owned[owned.shard] = owned
        self._lanes[owned.shard] = lane or self._lanes[owned.shard]
        self._lanes[owned.shard].serve(owned)

    def move(self, shard: ShardRef, lane: Lane) -> None:
        """Move a shard to another lane; it stays where it is when its lane is in the middle of it."""
        self._lanes[shard].drop(shard)
        if not self.in_use(shard):
            self._lanes[shard] = lane
        owned = self._owned.get(shard)
        if owned is not None:
            self._lanes[shard].serve(owned)

    def forget(self, owned: OwnedShard) -> bool:
        """Remove a shard that another node may own, and watch its lease. False if it was removed before."""
        shard = owned.shard
        if self._owned.get(shard) is not owned:
            return False
        owned.lost.set()
        self._lanes[shard].drop(shard)
        self._lost[shard] = self._owned.pop(shard)
        self._watches[shard] = LeaseWatch(owned.queue, shard, known_epoch=owned.lease.epoch)
        return True

    def remove(self, owned: OwnedShard) -> None:
        """Remove a shard for good, when the node stops."""
        self._owned.pop(owned.shard, None)

    # -- shards that are to be released

    def leave(self, shard: ShardRef) -> OwnedShard:
        """Start no new batch of a shard; it is to be released, by the settle of its batch or at once."""
        self._lanes[shard].drop(shard)
        owned = self._owned[shard]
        owned.leaving = True
        return owned

    def stay(self, owned: OwnedShard) -> None:
        """Serve a shard again that could not be released."""
        owned.leaving = owned.release_sent = False
        self._lanes[owned.shard].serve(owned)

    def leaving(self) -> list[OwnedShard]:
        """Return the shards that are to be released, sorted by name."""
        return sorted((owned for owned in self._owned.values() if owned.leaving), key=attrgetter("shard"))

    def staying(self) -> list[ShardRef]:
        """Return the names of the other owned shards."""
        return [shard for shard, owned in self._owned.items() if not owned.leaving]

    def without_retired(self, shards: Iterable[ShardRef]) -> list[ShardRef]:
        """Return those of the shards that count for the node's share of its queues."""
        return [shard for shard in shards if shard not in self.retired]

    # -- leases of other nodes

    def wanted(self, queues: Collection[str]) -> list[ShardRef]:
        """Return the shards of these queues that the node does not own."""
        return [
            shard
            for shard in self._watches
            if shard.queue in queues and shard not in self._owned and shard not in self.retired
        ]

    def watch(self, shard: ShardRef) -> LeaseWatch:
        """Return what was seen of a shard's lease."""
        return self._watches[shard]

    def observe(self, shard: ShardRef, state: LeaseState, now: float, heartbeat: Member | None) -> LeaseWatch:
        """Record the state of a shard's lease, read at ``now`` (monotonic), with its owner's heartbeat."""
        watch = self._watches[shard] = self._watches[shard].observed(state, now, heartbeat)
        return watch

    def doubt(self, shard: ShardRef) -> LeaseWatch:
        """Record that a shard's Redis does not answer: its owner cannot renew either."""
        watch = self._watches[shard] = self._watches[shard].doubted()
        return watch

    def postpone(self, shards: Iterable[ShardRef], until: float) -> None:
        """Do not acquire these shards before ``until`` (monotonic)."""
        for shard in shards:
            self._watches[shard] = replace(self._watches[shard], not_before=until)

    def shards_of(self, queue: str) -> list[ShardRef]:
        return [shard for shard in self._watches if shard.queue == queue]

    def mark_doubtful(self, now: float) -> None:
        """Mark shards as lost whose lease has run out at ``now`` (monotonic), because Redis does not answer.

        Silence of other owners counts from anew: they could not renew either.
        """
        self._watches = {shard: watch.doubted() for shard, watch in self._watches.items()}
        for owned in self._owned.values():
            if now >= owned.deadline:
                owned.lost.set()
