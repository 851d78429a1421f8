"""What must hold, looked at while it happens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_lowkiq.rules.models import Batch, Job, Lease, ShardRef, shard_of
from tests.simulation.server import Server
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.node import Node


#: Lease times that a living owner needs at most to renew when Redis answers again.
RETURN = 0.9
#: A silence that all nodes notice, in lease times.
NOTICED = 0.5
#: Lease times after which a released shard has a new owner, where a node wants it: a turn, and the round
#: trips of another one.
HAND_OVER = 0.6
#: Lease times after the end of an outage, or of what kept a node from its work, when that works as before.
CALM = 1.0
#: Lease times between two looks at shards that were released.
LOOK = 0.05


@dataclass
class Run:
    node: Node
    batch: Batch
    deadline: float


@dataclass
class HandOver:
    """A shard that its owner has released: the process where, and since when which nodes want it."""

    process: str
    wanted_since: dict[str, float]


class Checks:
    """The ledger of a simulation."""

    def __init__(
        self, world: World, server: Server, queue: str, *, strict: bool, lease_seconds: float
    ) -> None:
        self._world = world
        self._lease = lease_seconds
        self.server = server
        self._queue = queue
        self._strict = strict
        self._running: dict[ShardRef, list[Run]] = defaultdict(list)
        self._released: dict[ShardRef, HandOver] = {}
        server.taken, server.released, server.not_known = self.taken, self.released, self.not_known
        #: All that were ever started, by name.
        self.nodes: dict[str, Node] = {}
        #: Whether calls get lost at random.
        self.lossy = False
        self.overlaps_of_frozen = 0
        self.runs = 0
        #: By id: payload -> when its push was acknowledged.
        self.acknowledged: dict[str, dict[bytes, float]] = defaultdict(dict)
        self._begun: dict[str, set[bytes]] = defaultdict(set)
        self._done: dict[str, set[bytes]] = defaultdict(set)
        self._ended: dict[str, set[bytes]] = defaultdict(set)
        #: Acknowledgements between these times may be lost: Redis came back with older data.
        self.lost_windows: list[tuple[float, float]] = []

    def shard(self, job_id: str) -> ShardRef:
        return ShardRef(self._queue, shard_of(job_id, self.server.count))

    # -- runs

    def begin(self, node: Node, batch: Batch) -> Run:
        """I1: while a run's node may trust its lease, no other run of the shard begins."""
        self.runs += 1
        now = self._world.now
        for other in self._running[batch.shard]:
            if self._strict or (now < self._deadline(other) and not self._has_just_thawed(node)):
                self._world.violated(
                    f"{batch.shard} runs on {node.name} while it runs on {other.node.name}, "
                    f"whose lease lasts until {self._deadline(other):.3f}"
                )
            if now < other.node.given_up.get(batch.shard, 0.0):
                self._world.violated(
                    f"{batch.shard} runs on {node.name} while it runs on {other.node.name}, which is ending"
                )
            self.overlaps_of_frozen += 1
        run = Run(node, batch, 0.0)
        self._running[batch.shard].append(run)
        for job in batch.jobs:
            self._in_order(batch, job)
        return run

    def _has_just_thawed(self, node: Node) -> bool:
        """Whether it was frozen after its last look at the clock: only the kernel could stop the run."""
        return node.frozen_until == self._world.now

    def _deadline(self, run: Run) -> float:
        held = run.node.runtime._ownership._table.get(run.batch.shard)
        if held is None or held.lease != run.batch.lease:
            return 0.0
        return run.node.when(held.deadline)

    def _in_order(self, batch: Batch, job: Job) -> None:
        """I4: ascending; what was acknowledged before the claim does not come for the first time later."""
        scores = [payload.score for payload in job.payloads]
        if scores != sorted(scores):
            self._world.violated(f"{job.id}: {scores}")
        begun = self._begun[job.id]
        begun.update(payload.data for payload in job.payloads)
        claimed_at = self.server.claimed_at[batch.shard, batch.lease.epoch, batch.claim]
        overtaken = [
            payload
            for payload in self.server.places(job.id, self.shard(job.id))
            if int(payload) < scores[-1]
            and payload not in begun
            and self.acknowledged[job.id].get(payload, claimed_at) < claimed_at
            # A failover may have lost it since, and the call come once more, late.
            and self.server.stored_at[job.id, payload] < claimed_at
        ]
        if overtaken:
            self._world.violated(f"{job.id}: {scores[-1]:.0f} runs before {overtaken}")

    def end(self, run: Run) -> None:
        self._running[run.batch.shard].remove(run)
        for job in run.batch.jobs:
            self._ended[job.id].update(payload.data for payload in job.payloads)

    def died(self, node: Node) -> None:
        for runs in self._running.values():
            runs[:] = [run for run in runs if run.node is not node]

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        for job in batch.jobs:
            if job.id in accepted:
                self._done[job.id].update(payload.data for payload in job.payloads)

    def runs_on(self, node: Node) -> bool:
        return any(run.node is node for runs in self._running.values() for run in runs)

    def run_by_others(self, node: Node, shards: Sequence[ShardRef]) -> list[ShardRef]:
        """Return those of the shards that nodes other than this one run."""
        return [shard for shard in shards if any(run.node is not node for run in self._running[shard])]

    # -- leases

    def taken(self, shard: ShardRef, former: str, owner: str) -> None:
        """I6: a silence of all masters or of its own costs no living owner a shard: no node could look, nor
        renew.
        """
        server, now = self.server, self._world.now
        master = server.master_of[shard]
        began, ended = server.away_from[master], server.away_until[master]
        same = server.here_since[shard] < began
        if server.silent_from > began:
            began, ended = server.silent_from, server.silent_until
            same = server.starts == server.silent_start
        noticed = same and ended - began > NOTICED * self._lease
        if self.lossy or not noticed or now > ended + RETURN * self._lease:
            return
        if all(self.nodes[name].undisturbed_since(began - self._lease) for name in (former, owner)):
            self._world.violated(
                f"{owner} takes {shard} from {former}, which lives, {now - ended:.3f} after Redis was silent"
            )

    def not_known(self, lease: Lease) -> None:
        """I7: an owner that has renewed in time on the process that has its shard can release it there."""
        node = self.nodes[lease.owner]
        owned = node.runtime._ownership._table.get(lease.shard)
        # The release may have been sent before the last renewal was answered.
        if owned is None or (owned.lease, owned.lease.server) != (lease, lease.server):
            return
        renewed_at = node.when(owned.renewed_at)
        if self.server.here_since[lease.shard] <= renewed_at and self._world.now < node.when(owned.deadline):
            self._world.violated(
                f"{node.name} may not release {lease.shard} on {self.server.name_of(lease.shard)}, where it "
                f"renewed at {renewed_at:.3f}: it names {lease.server}"
            )

    def released(self, lease: Lease) -> None:
        self._released[lease.shard] = HandOver(self.server.name_of(lease.shard), {})

    def look_at_released(self) -> None:
        """I7: a shard that was released waits for no lease time while a node with room for it lives."""
        now = self._world.now
        calm = not self.lossy and not self.server.down and not self.server.unresponsive
        for shard, hand_over in list(self._released.items()):
            if not self._is_free(shard, hand_over):
                del self._released[shard]
                continue
            want = [node.name for node in self.nodes.values() if calm and self._wants(node, shard)]
            before = hand_over.wanted_since
            hand_over.wanted_since = {name: before.get(name, now) for name in want}
            for name, since in hand_over.wanted_since.items():
                if now - since > HAND_OVER * self._lease:
                    self._world.violated(
                        f"{name} does not take {shard}, which is free, and which it wants since {since:.3f}"
                    )
        self._world.later(LOOK * self._lease, self.look_at_released)

    def _is_free(self, shard: ShardRef, hand_over: HandOver) -> bool:
        server = self.server
        there = server.name_of(shard) == hand_over.process and shard.index < server.count
        return there and not server.shards[shard].owner and shard not in server.damaged

    def _wants(self, node: Node, shard: ShardRef) -> bool:
        server = self.server
        away_until = server.away_until[server.master_of[shard]]
        calm_since = max(server.up_since, server.silent_until, away_until, node.disturbed_until)
        if node.dead or node.ending or self._world.now < calm_since + CALM * self._lease:
            return False
        return node.wants(shard)

    def all_is_released(self, node: Node) -> None:
        """A node that was stopped has no shard of the queue. Of what a former server gave it knows nothing.

        Nor may it know of the lease of a removed shard, when the last renewal of it was refused or the answer
        to its acquisition was lost: it acquires that shard no more, and the lease expires.
        """
        server = self.server
        states = {shard: server.shards[shard] for shard in server.current()}
        kept = [str(s) for s, x in states.items() if (x.owner, x.given_on) == (node.name, server.name_of(s))]
        if kept:
            self._world.violated(f"{node.name} has not released {kept}")

    # -- payloads

    def _may_be_lost(self, job_id: str, payload: bytes) -> bool:
        at = self.acknowledged[job_id].get(payload)
        return at is None or any(start <= at <= end for start, end in self.lost_windows)

    def nothing_is_lost(self) -> None:
        """I3: what was acknowledged has been run to its end, or is still somewhere."""
        for job_id, payloads in self.acknowledged.items():
            known = self._ended[job_id].union(self.server.places(job_id, self.shard(job_id)))
            lost = [p for p in payloads if p not in known and not self._may_be_lost(job_id, p)]
            if lost:
                self._world.violated(f"{job_id}: {lost} are lost")

    def all_is_done(self) -> None:
        """I3 and I5, when the queue has run empty."""
        if not self.server.idle():
            left = {
                str(s): list(x.model.waiting) + list(x.model.processing)
                for s, x in self.server.shards.items()
            }
            self._world.violated(f"not drained: {left}")
        self.nothing_is_lost()

    def busy(self) -> bool:
        """Whether anything runs, be it in vain."""
        return any(self._running.values())
