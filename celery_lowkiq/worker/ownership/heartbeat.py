"""The node's heartbeat, sent with its report and with samples of the queues whose first shard it owns."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.errors import AccessDenied, StoreError, StoreFull, StoreUnavailable
from celery_lowkiq.rules.history import HOUR, Counters
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.reports import (
    LISTED_SHARDS,
    BeatResult,
    LaneReport,
    NodeReport,
    NodeUpdate,
    UpdateReply,
    node_name,
    waits,
)

from ..context import WorkerContext
from ..lane.lane import Lane
from .overdue import LaneLoads, running


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
        result = self._ctx.store.beat(queues, self._ctx.owner, lanes, self.turn, self._update())
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

    def _update(self) -> NodeUpdate:
        now = self._ctx.clock.monotonic()
        samples, self._samples = self._samples, ()
        return NodeUpdate(self._report(now), now - self._started_at, samples, self._queues_to_count(now))

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
            # Of a cluster's master, which is named in the log already.
            return
        refused = isinstance(reply, StoreError)
        if refused and not self._refused:
            logger.warning("the report of this node is not stored: %s", reply)
        elif self._refused and not refused:
            logger.info("the report of this node is stored again")
        self._refused = refused
