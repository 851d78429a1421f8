"""The node's heartbeat, and what goes with it: its report, and samples of queues whose first shard it has."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.history import Sample, slot
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.reports import (
    LISTED_SHARDS,
    Heard,
    LaneReport,
    NodeNews,
    NodeReport,
    Told,
    describe_lane,
    describe_run,
    node_name,
    waits,
)

from ..context import Surroundings
from ..lane.lane import Lane

logger = logging.getLogger("celery_lowkiq.worker")


class Heartbeat:
    """Beats in the ownership thread. What is said with it is for people, and its failure disturbs nothing."""

    def __init__(
        self, around: Surroundings, *, owner: str, lanes: Sequence[Lane], queues: Sequence[QueueSpec]
    ) -> None:
        self._store = around.store
        self._clock = around.clock
        self._lease_seconds = around.lease_seconds
        self._owner = owner
        self._lanes = lanes
        self._queues = {queue.name: queue for queue in queues}
        self._started_at = self._clock.monotonic()
        self._samples: tuple[tuple[str, Sample], ...] = ()
        #: Redis's clock minus ours, once it is known, and the slot that was counted last.
        self._ahead: float | None = None
        self._counted = 0
        self._refused = False
        #: Told by whoever knows.
        self.serves: Collection[str] = ()
        #: Shards that wait out a lease which another Redis process gave, and until when (monotonic).
        self.free_at: Mapping[ShardRef, float] = {}
        self.quiet = False
        self.stopping = False

    def beat(self, queues: Sequence[str]) -> list[dict[str, tuple[int, int]]]:
        """Move the heartbeat in these queues; lanes and counter of all nodes. Raises StoreError."""
        heard: Heard = self._store.beat(queues, self._owner, len(self._lanes), self._news())
        if isinstance(heard.told, Told):
            self._learn(heard.told)
        self._say(heard.told)
        return heard.members

    def learn(self, queues: Mapping[str, QueueSpec]) -> None:
        """Know more queues, by name."""
        self._queues.update(queues)

    def end(self) -> None:
        """The node is gone."""
        try:
            self._store.forget_report(self._owner)
        except StoreError as error:
            logger.info("what this node did last is shown for a while: %s", error)

    def _news(self) -> NodeNews:
        now = self._clock.monotonic()
        samples, self._samples = self._samples, ()
        return NodeNews(self._report(now), now - self._started_at, samples, self._to_count(now))

    def _report(self, now: float) -> NodeReport:
        return NodeReport(
            name=node_name(self._owner),
            owner=self._owner,
            pid=os.getpid(),
            lease_seconds=self._lease_seconds,
            quiet=self.quiet,
            stopping=self.stopping,
            queues=tuple(sorted(self.serves)),
            lanes=tuple(self._describe(lane, now) for lane in self._lanes),
            waits=waits(self.free_at, now),
        )

    def _describe(self, lane: Lane, now: float) -> LaneReport:
        batch = lane.batch
        running = None if batch is None else describe_run(batch, now)
        return describe_lane(lane.name, lane.shards(), max(1, LISTED_SHARDS // len(self._lanes)), running)

    def _to_count(self, now: float) -> tuple[QueueSpec, ...]:
        """Once in each slot of Redis's time, the queues whose first shard is here."""
        if self._ahead is None or slot(now + self._ahead) == self._counted:
            return ()
        held = frozenset[ShardRef]().union(*(lane.shards() for lane in self._lanes))
        return tuple(queue for name, queue in self._queues.items() if ShardRef(name, 0) in held)

    def _learn(self, told: Told) -> None:
        self._ahead = told.now - self._clock.monotonic()
        if told.samples:
            self._samples, self._counted = told.samples, slot(told.now)

    def _say(self, told: Told | StoreError | None) -> None:
        """Once when it begins, once when it ends."""
        refused = isinstance(told, StoreError)
        if refused and not self._refused:
            logger.warning("what this node does cannot be shown: %s", told)
        elif self._refused and not refused:
            logger.info("what this node does can be shown again")
        self._refused = refused
