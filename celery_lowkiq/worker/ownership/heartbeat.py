"""The node's heartbeat, sent with its report and with samples of the queues whose first shard it owns."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.history import Sample, slot
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.reports import (
    LISTED_SHARDS,
    BeatResult,
    HeartbeatReply,
    LaneReport,
    NodeReport,
    NodeUpdate,
    describe_lane,
    describe_run,
    node_name,
    waits,
)

from ..context import WorkerContext
from ..lane.lane import Lane


class Heartbeat:
    """Sent by the ownership thread. Reports are for people only: a refused report affects nothing else."""

    def __init__(
        self,
        ctx: WorkerContext,
        *,
        lanes: Sequence[Lane],
        queues: Sequence[QueueSpec],
        served: Collection[str],
    ) -> None:
        self._store = ctx.store
        self._clock = ctx.clock
        self._owner = ctx.owner
        self._lease_seconds = ctx.lease_seconds
        self._lanes = lanes
        self._queues = {queue.name: queue for queue in queues}
        self._started_at = self._clock.monotonic()
        self._samples: tuple[tuple[str, Sample], ...] = ()
        #: Redis's clock minus the monotonic one, once it is known.
        self._offset: float | None = None
        self._counted_slot = 0
        self._refused = False
        self._served = served
        self._free_at: Mapping[ShardRef, float] = {}
        self._quiet = False
        self._stopping = False

    def beat(self, queues: Sequence[str]) -> list[dict[str, tuple[int, int]]]:
        """Move the heartbeat in these queues; return lanes and counter of all nodes. Raises StoreError."""
        answer: BeatResult = self._store.beat(queues, self._owner, len(self._lanes), self._news())
        if isinstance(answer.told, HeartbeatReply):
            self._record(answer.told)
        self._log_refusal(answer.told)
        return answer.members

    def add_queues(self, queues: Mapping[str, QueueSpec]) -> None:
        """Add queues by name, for samples."""
        self._queues.update(queues)

    def report_served(self, queues: Collection[str]) -> None:
        """Report the names of the queues that the node serves."""
        self._served = queues

    def report_quiet(self, quiet: bool) -> None:
        """Report whether an operator made the node quiet."""
        self._quiet = quiet

    def report_stopping(self) -> None:
        """Report that the node stops."""
        self._stopping = True

    def report_waits(self, free_at: Mapping[ShardRef, float]) -> None:
        """Report shards that wait out a lease given by another Redis process, and until when (monotonic)."""
        self._free_at = free_at

    def remove_report(self) -> None:
        """Remove the report of a node that has ended."""
        try:
            self._store.forget_report(self._owner)
        except StoreError as error:
            logger.info("the last report of this node stays visible for a while: %s", error)

    def _news(self) -> NodeUpdate:
        now = self._clock.monotonic()
        samples, self._samples = self._samples, ()
        return NodeUpdate(self._report(now), now - self._started_at, samples, self._queues_to_count(now))

    def _report(self, now: float) -> NodeReport:
        return NodeReport(
            name=node_name(self._owner),
            owner=self._owner,
            pid=os.getpid(),
            lease_seconds=self._lease_seconds,
            quiet=self._quiet,
            stopping=self._stopping,
            queues=tuple(sorted(self._served)),
            lanes=tuple(self._describe(lane, now) for lane in self._lanes),
            waits=waits(self._free_at, now),
        )

    def _describe(self, lane: Lane, now: float) -> LaneReport:
        batch = lane.batch
        running = None if batch is None else describe_run(batch, now)
        return describe_lane(lane.name, lane.shards(), max(1, LISTED_SHARDS // len(self._lanes)), running)

    def _queues_to_count(self, now: float) -> tuple[QueueSpec, ...]:
        """Return, once in each slot of Redis's time, the queues whose first shard is here."""
        if self._offset is None or slot(now + self._offset) == self._counted_slot:
            return ()
        shards = frozenset[ShardRef]().union(*(lane.shards() for lane in self._lanes))
        return tuple(queue for name, queue in self._queues.items() if ShardRef(name, 0) in shards)

    def _record(self, told: HeartbeatReply) -> None:
        self._offset = told.now - self._clock.monotonic()
        if told.samples:
            self._samples, self._counted_slot = told.samples, slot(told.now)

    def _log_refusal(self, told: HeartbeatReply | StoreError | None) -> None:
        refused = isinstance(told, StoreError)
        if refused and not self._refused:
            logger.warning("Redis refuses the report of this node: %s", told)
        elif self._refused and not refused:
            logger.info("Redis accepts the report of this node again")
        self._refused = refused
