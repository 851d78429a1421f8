"""Runs of this node that take too long, and the load of its lanes in the long run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import Batch, Lease
from celery_lowkiq.rules.overdue import overdue_after, usual_run
from celery_lowkiq.rules.reports import LISTED_IDS, Running
from celery_lowkiq.rules.shard_hints import LONG_RUN

from ..context import WorkerContext
from ..lane.lane import Lane

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
