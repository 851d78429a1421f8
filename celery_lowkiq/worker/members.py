"""Members of the cluster: heartbeats, shares, and overdue runs that a node reports."""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.errors import AccessDenied, StoreError, StoreFull, StoreUnavailable
from celery_lowkiq.rules.health import LONG_RUN, overdue_after, usual_run
from celery_lowkiq.rules.models import Batch, Lease, QueueSpec, ShardRef
from celery_lowkiq.rules.shares import Member, Pool, QuotaRoom, quotas, surplus_shards
from celery_lowkiq.rules.views import (
    HOUR,
    LISTED_IDS,
    LISTED_SHARDS,
    BeatResult,
    Counters,
    LaneReport,
    NodeReport,
    NodeUpdate,
    Running,
    UpdateReply,
    node_name,
    waits,
)
from celery_lowkiq.worker.context import WorkerContext
from celery_lowkiq.worker.lane import Lane

# Runs of this node that take too long, and the load of its lanes in the long run.

#: Seconds between two samples of the time that lanes have run.
SAMPLE_STEP = LONG_RUN / 10


def running(batch: Batch, lanes: Sequence[Lane], now: float) -> Running:
    """Describe a running batch of one of the node's lanes; ``now`` is monotonic."""
    max_run = batch.queue.max_run
    usual = usual_run(lane.mean_run(batch.queue.name) for lane in lanes)
    seconds = max(0.0, now - batch.began_at)
    ids = tuple(job.id for job in batch.jobs[:LISTED_IDS])
    overdue = not batch.is_starting and seconds > overdue_after(max_run, usual)
    return Running(batch.shard, ids, len(batch.jobs), round(seconds, 3), overdue, max_run, usual)


class OverdueMonitor:
    """Calls ``Host.alarm`` once for each run that is overdue."""

    def __init__(self, ctx: WorkerContext, lanes: Sequence[Lane]) -> None:
        self._ctx = ctx
        self._lanes = lanes
        self._told: list[Batch] = []
        #: Leases of the batches that run longer than ``max_run``; a shard runs one batch at a time.
        self.leases: frozenset[Lease] = frozenset()

    def check(self) -> None:
        now, told, over = self._ctx.clock.monotonic(), [], set[Lease]()
        for lane in self._lanes:
            batch = lane.batch
            if batch is None or not (run := running(batch, self._lanes, now)).overdue:
                continue
            told.append(batch)
            if run.max_run is not None:
                over.add(batch.lease)
            if not any(batch is other for other in self._told):
                self._ctx.host.alarm(lane.name, run, self._waiting_behind(lane))
        self._told, self.leases = told, frozenset(over)

    def _waiting_behind(self, lane: Lane) -> int | None:
        try:
            return self._ctx.store.count_due(lane.shards())
        except StoreError:
            return None


class LaneLoads:
    """Fraction of the time in which each lane ran, over the last ten minutes."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        #: Monotonic times, and the seconds that each lane had run until then; the first is ten minutes old.
        self._samples: deque[tuple[float, list[float]]] = deque(maxlen=round(LONG_RUN / SAMPLE_STEP) + 1)

    def read(self, now: float) -> list[float | None]:
        """Return the load of each lane at ``now`` (monotonic); None before there are ten minutes."""
        ran = [lane.seconds_run(now) for lane in self._lanes]
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_STEP:
            self._samples.append((now, ran))
        since, before = self._samples[0]
        if now - since < LONG_RUN:
            return [None] * len(ran)
        loads = (min(1.0, (new - old) / (now - since)) for old, new in zip(before, ran, strict=True))
        return [round(load, 2) for load in loads]


# The node's heartbeat, sent with its report and with samples of the queues whose first shard it owns.


class Heartbeat:
    """Sent by the ownership thread. Reports are for people only: a refused report affects nothing else."""

    def __init__(
        self,
        ctx: WorkerContext,
        *,
        lanes: Sequence[Lane],
        queues: Mapping[str, QueueSpec],
        served: Collection[str],
    ) -> None:
        """``queues``: all whose samples may be sent, by name; may change."""
        self._ctx = ctx
        self._lanes = lanes
        self._loads = LaneLoads(lanes)
        self._queues = queues
        self._started_at = self._ctx.clock.monotonic()
        self._samples: tuple[tuple[str, Counters], ...] = ()
        #: Redis's clock minus the monotonic one, once it is known.
        self._offset: float | None = None
        self._counted_slot = 0
        self._refused = False
        #: Number of the turn, which its renewals and then the heartbeat show; set by ownership.
        self.turn = 0
        #: The numbers of shards in the code, by queue. Those of ``queues`` become the stored ones.
        self.declared: dict[str, int] = {queue.name: queue.shards for queue in queues.values()}
        # For the report; set by ownership.
        self.served = served
        self.quiet = False
        self.stopping = False
        #: Shards that wait out a lease given by another Redis process, and until when (monotonic).
        self.free_at: Mapping[ShardRef, float] = {}

    def beat(self, queues: Sequence[str], lanes: int) -> BeatResult:
        """Move the heartbeat in these queues, or just read them without ``lanes``. Raises StoreError."""
        now = self._ctx.clock.monotonic()
        samples, self._samples = self._samples, ()
        update = NodeUpdate(self._report(now), now - self._started_at, samples, self._queues_to_count(now))
        result = self._ctx.store.beat(queues, self._ctx.owner, lanes, self.turn, update)
        reply = result.reply
        if isinstance(reply, UpdateReply):
            self._offset = reply.now - self._ctx.clock.monotonic()
            if reply.samples:
                self._samples, self._counted_slot = reply.samples, HOUR.slot(reply.now)
        self._log_refusal(reply)
        return result

    def remove_report(self) -> None:
        """Remove the report of a node that has ended."""
        try:
            self._ctx.store.forget_report(self._ctx.owner)
        except StoreError as error:
            logger.info("the last report of this node stays visible for a while: %s", error)

    def _report(self, now: float) -> NodeReport:
        return NodeReport(
            name=node_name(self._ctx.owner),
            owner=self._ctx.owner,
            pid=os.getpid(),
            lease_seconds=self._ctx.lease_seconds,
            quiet=self.quiet,
            stopping=self.stopping,
            queues=tuple(sorted(self.served)),
            lanes=tuple(
                self._describe(*each, now) for each in zip(self._lanes, self._loads.read(now), strict=True)
            ),
            waits=waits(self.free_at, now),
            declared=self.declared,
        )

    def _describe(self, lane: Lane, load: float | None, now: float) -> LaneReport:
        batch, shards = lane.batch, lane.shards()
        run = None if batch is None else running(batch, self._lanes, now)
        listed = max(1, LISTED_SHARDS // len(self._lanes))
        return LaneReport(lane.name, tuple(shards[:listed]), len(shards), run, load)

    def _queues_to_count(self, now: float) -> tuple[QueueSpec, ...]:
        """Return, once in each slot of Redis's time, the queues whose first shard is here."""
        if self._offset is None or HOUR.slot(now + self._offset) == self._counted_slot:
            return ()
        shards = frozenset[ShardRef]().union(*(lane.shards() for lane in self._lanes))
        return tuple(queue for name, queue in self._queues.items() if ShardRef(name, 0) in shards)

    def _log_refusal(self, reply: UpdateReply | StoreError | None) -> None:
        if isinstance(reply, StoreUnavailable) and not isinstance(reply, (StoreFull, AccessDenied)):
            # The error of a cluster's master, which is named in the log already.
            return
        refused = isinstance(reply, StoreError)
        if refused and not self._refused:
            logger.warning("the report of this node is not stored: %s", reply)
        elif self._refused and not refused:
            logger.info("the report of this node is stored again")
        self._refused = refused


# Nodes by the queues that they serve, from their heartbeats, timed by this node's monotonic clock.


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
        #: By queue, the monotonic time since when each update has read its heartbeats.
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
        unresponsive = self._unresponsive(queues)

        def quota_without(names: Collection[str]) -> int:
            return quotas(shards, {name: count for name, count in lanes.items() if name not in names})[owner]

        # Unresponsive nodes keep their shards, but take none: a shard left to them would not be served.
        quota = quota_without(unresponsive)
        return Pool(frozenset(queues), quota, max(quota, quota_without(new | unresponsive)))

    def seconds_to_unresponsive(self) -> float:
        """Return the seconds until a node whose heartbeat stands still counts as unresponsive; else infinite.

        A shard that was released for it has a new owner from then on, and no announcement says so.
        """
        now, lease_seconds = self._ctx.clock.monotonic(), self._ctx.lease_seconds
        times = (
            one.unresponsive_at(lease_seconds, read_since) - now
            for queue, read_since in self._read_since.items()
            if queue in self._others
            for one in self._others[queue].values()
        )
        return min((seconds for seconds in times if seconds > 0), default=math.inf)

    def _unresponsive(self, queues: Sequence[str]) -> set[str]:
        """Return the nodes whose heartbeats are missing in each of these queues that can be read.

        The heartbeats of two queues may lie on two masters of a cluster, one of them unreachable.
        """
        now, lease_seconds = self._ctx.clock.monotonic(), self._ctx.lease_seconds
        members = [
            (one, self._read_since[queue])
            for queue in queues
            if queue in self._read_since
            for one in self._others[queue].values()
        ]
        heard = {
            one.name for one, read_since in members if not one.unresponsive(now, lease_seconds, read_since)
        }
        return {one.name for one, _ in members} - heard
