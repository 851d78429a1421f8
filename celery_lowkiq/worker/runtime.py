"""The engine of a node: lanes, ownership and waker, started and stopped together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from celery_lowkiq.rules.basics import Clock
from celery_lowkiq.rules.claims import Scheduler
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.shares import Splitter, lease_splitter
from celery_lowkiq.worker.context import OwnershipMailbox, RateLimiter, WorkerContext
from celery_lowkiq.worker.exclusion import Exclusion
from celery_lowkiq.worker.lane import MAX_WAIT_BEHIND_RUN, Lane
from celery_lowkiq.worker.members import running
from celery_lowkiq.worker.outage import OutageTracker
from celery_lowkiq.worker.ownership import Ownership
from celery_lowkiq.worker.ports import NULL_METER, Host, Meter, Runner, Store
from celery_lowkiq.worker.waker import Waker


class Runtime:
    """Serves the queues until it is drained or abandoned."""

    def __init__(
        self,
        store: Store,
        runner: Runner,
        host: Host,
        queues: Sequence[QueueSpec],
        *,
        lanes: int,
        owner: str,
        clock: Clock,
        scheduler_factory: Callable[[], Scheduler],
        splitter: Splitter,
        poll_interval: float,
        lease_seconds: float,
        window: int,
        exclusion: Exclusion | None = None,
        served: Collection[str] | None = None,
        rates: Mapping[str, float] | None = None,
        meter: Meter = NULL_METER,
        auto_reshard: bool = False,
    ) -> None:
        """``owner`` names this start of the process; ``window`` is the maximum number of batches in a claim.

        ``served`` names the ``queues`` to begin with, by default all, see :meth:`serve`; ``rates`` are runs a
        second of rate-limited queues. ``exclusion`` is cooperative by default.
        """
        self._clock = clock
        self._ctx = ctx = WorkerContext(
            store=store,
            runner=runner,
            host=host,
            clock=clock,
            outage=OutageTracker(clock, meter),
            exclusion=exclusion or Exclusion(),
            rate_limiter=RateLimiter(clock, owner, poll_interval, rates or {}),
            meter=meter,
            mailbox=OwnershipMailbox(),
            suspect_lock=threading.Lock(),
            owner=owner,
            poll_interval=poll_interval,
            lease_seconds=lease_seconds,
            window=window,
            auto_reshard=auto_reshard,
        )
        self._lanes: list[Lane] = []
        for number in range(lanes):
            self._lanes.append(Lane(f"lane-{number}", ctx, scheduler_factory(), self._lanes))
        self._queues, self._splitter = list(queues), splitter
        self.queue_names: frozenset[str] = frozenset(queue.name for queue in queues)
        self.served: frozenset[str] = self.queue_names if served is None else frozenset(served)
        #: True if an operator made the node quiet: it serves nothing.
        self.is_quiet: bool = False
        shared = splitter is lease_splitter
        self._ownership = Ownership(
            ctx, lanes=self._lanes, queues=queues, deal=self._deal, served=self.served, shared=shared
        )
        self._waker = Waker(
            ctx, self._queues_to_serve(), announced=self._on_announcement, connected=self._refresh
        )
        #: In the order in which they are started and joined.
        self._threads = [
            *(lane.thread for lane in self._lanes),
            self._waker.thread,
            self._ownership.thread,
            ctx.thread("lowkiq-window-reaper", self._reap),
        ]

    def start(self) -> None:
        """Start all threads; free shards are acquired at once."""
        for thread in self._threads:
            thread.start()

    def add_queues(self, queues: Sequence[QueueSpec]) -> None:
        """Add queues, which :meth:`serve` may name from now on.

        A fixed splitter has dealt its shards already: ``queue_names`` stays as it is then.
        """
        new = [queue for queue in queues if queue.name not in self.queue_names]
        if not new or self._splitter is not lease_splitter:
            return
        self._ownership.add_queues(new)
        self._queues = [*self._queues, *new]
        self.queue_names |= {queue.name for queue in new}

    def serve(self, names: Collection[str]) -> None:
        """Serve exactly these queues from now on; returns at once.

        Running batches of a dropped queue are finished, and other nodes get its shards.
        """
        self.served = frozenset(names)
        self._update_served()

    def quiet(self, yes: bool) -> None:
        """Serve nothing while quiet, as if no queue were served; returns at once."""
        self.is_quiet = yes
        self._update_served()

    def _update_served(self) -> None:
        serving = self._queues_to_serve()
        self._ownership.serve([queue.name for queue in serving], self.is_quiet)
        self._waker.listen_to(serving)

    def set_rate(self, queue: str, rate: float | None) -> None:
        """Limit a queue to ``rate`` runs a second over all nodes; None removes the limit."""
        self._ctx.rate_limiter.set_rate(queue, rate)
        self._refresh()

    def stop_claiming(self) -> None:
        """Start no new batch. Safe in a signal handler; :meth:`drain` must follow."""
        for lane in self._lanes:
            lane.stop_claiming()

    def drain(self) -> None:
        """Start no new batch, and release the shards when the running ones have ended; returns at once."""
        for lane in self._lanes:
            lane.stop()
        self._ownership.drain()
        self._waker.stop()

    def abandon(self) -> None:
        """Stop without waiting: the next owners of the shards recover running batches; returns at once."""
        self._ownership.abandon()
        self.drain()
        self._ctx.outage.stop.set()

    def release_at_exit(self, timeout: float) -> None:
        """Release all shards of an abandoned node, for at most ``timeout`` s: the process ends now."""
        self._ownership.release_at_exit()
        self._ownership.thread.join(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until batches are settled and leases released, at most ``timeout`` s; whether they are."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))
        return self._ownership.finished.is_set() and all(lane.ended for lane in self._lanes)

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self._lanes)

    def busy(self) -> int:
        """Return the number of running batches."""
        return sum(lane.batch is not None for lane in self._lanes)

    def snapshot(self) -> dict[str, Any]:
        now = self._clock.monotonic()
        return {"quiet": self.is_quiet, "lanes": [_describe(lane, self._lanes, now) for lane in self._lanes]}

    def _deal(self, queues: Sequence[QueueSpec]) -> dict[ShardRef, tuple[QueueSpec, Lane]]:
        by_shard = {shard: queue for queue in queues for shard in queue.shard_refs()}
        dealt = self._splitter(list(by_shard), len(self._lanes))
        lane_of = {shard: lane for lane, shards in zip(self._lanes, dealt, strict=True) for shard in shards}
        return {shard: (queue, lane_of[shard]) for shard, queue in by_shard.items() if shard in lane_of}

    def _queues_to_serve(self) -> list[QueueSpec]:
        return [queue for queue in self._queues if queue.name in self.served and not self.is_quiet]

    def _on_announcement(self, shard: ShardRef, perform_in: float | None) -> None:
        lane = self._ownership.find_lane(shard)
        if lane is None:
            return
        if perform_in is None:
            self._ctx.mailbox.wake()
        else:
            lane.announce(shard, perform_in)

    def _reap(self) -> None:
        """Return claimed batches, and write results, that wait too long behind a running batch.

        In a thread of its own: a lane cannot do so while it runs a batch, and the ownership thread must not
        wait for Redis between two renewals.
        """
        while not self._ownership.finished.wait(MAX_WAIT_BEHIND_RUN / 2):
            for lane in self._lanes:
                lane.return_unstarted(self._clock.monotonic())
            self._ctx.runner.write_late()

    def _refresh(self) -> None:
        for lane in self._lanes:
            lane.refresh()
        # Another node may have released a shard meanwhile.
        self._ctx.mailbox.wake()


def _describe(lane: Lane, lanes: Sequence[Lane], now: float) -> dict[str, Any]:
    batch, shown = lane.batch, None
    if batch is not None:
        run = running(batch, lanes, now)
        shown = {
            "shard": str(run.shard),
            "ids": [job.id for job in batch.jobs],
            "seconds": run.seconds,
            "overdue": run.overdue,
        }
    return {"name": lane.name, "shards": [str(shard) for shard in lane.shards()], "running": shown}
