"""The engine of a node: lanes, ownership and waker, started and stopped together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.schedulers import Scheduler
from celery_lowkiq.rules.splitters import Splitter, lease_splitter

from .context import Surroundings
from .exclusion import Cooperative, Exclusion
from .lane.due_poll import Survey
from .lane.lane import Lane
from .outage import Outage
from .ownership.heartbeat import Heartbeat
from .ownership.membership import Membership
from .ownership.misassignment import Strays
from .ownership.ownership import Ownership
from .ports import Host, Meter, Runner, Store
from .rate_limiter import Limits
from .unmeasured import UNMEASURED
from .waker import Waker


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
        poll_interval: float = 1.0,
        lease_seconds: float = 10.0,
        exclusion: Exclusion | None = None,
        window: int = 50,
        served: Collection[str] | None = None,
        rates: Mapping[str, float] | None = None,
        meter: Meter = UNMEASURED,
    ) -> None:
        """``poll_interval`` and ``lease_seconds`` in s; ``owner`` names this start of this process;
        ``exclusion`` is cooperative unless given; a lane claims at most ``window`` batches at once.
        ``served`` names those of the ``queues`` that it begins with, by default all; see :meth:`serve`.
        ``rates``: runs a second of limited queues, by name; see :meth:`limit`. ``meter`` counts what is done.
        """
        self._outage = Outage(clock, meter)
        self._clock = clock
        self._limits = Limits(clock, owner, poll_interval, rates or {})
        around = Surroundings(
            store=store,
            runner=runner,
            host=host,
            clock=clock,
            outage=self._outage,
            exclusion=exclusion or Cooperative(),
            limits=self._limits,
            meter=meter,
            poll_interval=poll_interval,
            lease_seconds=lease_seconds,
            window=window,
            survey=lambda: self._survey,
            lost=lambda held: self._ownership.lost(held),
            suspects=threading.Lock(),
            freed=lambda: self._ownership.look_now(),
        )
        self._lanes = [Lane(number, scheduler_factory(), around) for number in range(lanes)]
        self._survey = Survey(store, self._outage, self._lanes, clock)
        self._queues = list(queues)
        self._splitter = splitter
        self.known = frozenset(queue.name for queue in queues)
        self.served = self.known if served is None else frozenset(served)
        #: Told to serve nothing for now.
        self.is_quiet = False
        self._heartbeat = Heartbeat(around, owner=owner, lanes=self._lanes, queues=queues)
        self._ownership: Ownership = self._make_ownership(around, owner)
        self._waker = Waker(
            store, self._to_serve(), host, self._outage, pushed=self._heard, connected=self._refresh
        )

    def start(self) -> None:
        """Start all threads; shards are taken as soon as they are free."""
        for lane in self._lanes:
            lane.start()
        self._waker.start()
        self._ownership.start()

    def learn(self, queues: Sequence[QueueSpec]) -> None:
        """Know more queues, which :meth:`serve` may name from now on. Only leases can share out what comes
        later: with another splitter, ``known`` stays what it is.
        """
        new = [queue for queue in queues if queue.name not in self.known]
        if not new or self._splitter is not lease_splitter:
            return
        self._ownership.learn(self._deal(new))
        self._queues = [*self._queues, *new]
        self.known |= {queue.name for queue in new}

    def serve(self, names: Collection[str]) -> None:
        """Serve these of its queues from now on, and no other; returns at once. Of a queue that goes, running
        batches are finished, and other nodes get the shards.
        """
        self.served = frozenset(names)
        self._attend()

    def quiet(self, yes: bool) -> None:
        """Serve nothing until told otherwise, then again what it serves; returns at once. Running batches are
        finished, and other nodes get the shards.
        """
        self.is_quiet = self._heartbeat.quiet = yes
        self._attend()

    def _attend(self) -> None:
        serving = self._to_serve()
        self._ownership.serve([queue.name for queue in serving])
        self._waker.listen_to(serving)

    def limit(self, queue: str, rate: float | None) -> None:
        """Begin at most ``rate`` runs of a queue a second, all nodes together; None takes the limit away."""
        self._limits.limit(queue, rate)
        self._refresh()

    def hold(self) -> None:
        """Begin nothing new, as far as a signal handler can: :meth:`drain` is to follow."""
        for lane in self._lanes:
            lane.hold()

    def drain(self) -> None:
        """Begin nothing new; returns at once."""
        for lane in self._lanes:
            lane.stop()
        self._ownership.drain()
        self._waker.stop()

    def abandon(self) -> None:
        """Stop now: what runs is left to whoever owns the shard next; returns at once."""
        for lane in self._lanes:
            lane.stop()
        self._ownership.abandon()
        self._waker.stop()
        self._outage.stop.set()

    def let_go(self, timeout: float) -> None:
        """The process ends now, and what was abandoned with it: other nodes may have its shards at once.
        Takes at most ``timeout`` s.
        """
        self._ownership.let_go()
        self._ownership.join(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Wait, at most ``timeout`` s, until running batches are settled and leases released.

        True when all of that is done.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        threads: list[Lane | Ownership | Waker] = [*self._lanes, self._ownership, self._waker]
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))
        return self._ownership.ended and all(lane.ended for lane in self._lanes)

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return len(self._lanes)

    def busy(self) -> int:
        """How many batches run now."""
        return sum(lane.batch is not None for lane in self._lanes)

    def snapshot(self) -> dict[str, Any]:
        """What each lane serves and runs, as plain values."""
        now = self._clock.monotonic()
        return {"quiet": self.is_quiet, "lanes": [_picture(lane, now) for lane in self._lanes]}

    def _make_ownership(self, around: Surroundings, owner: str) -> Ownership:
        dealt = self._deal(self._queues)
        shards = {shard: queue for queue in self._queues for shard in queue.shard_refs()}
        me: Any = {"owner": owner, "lease_seconds": around.lease_seconds}
        membership = None
        if self._splitter is lease_splitter:
            membership = Membership(
                around.store,
                self._heartbeat,
                self._queues,
                self._clock,
                lanes=len(self._lanes),
                served=self.served,
                **me,
            )
        return Ownership(
            around,
            owner=owner,
            lanes=self._lanes,
            dealt=dealt,
            heartbeat=self._heartbeat,
            membership=membership,
            strays=Strays(around.store, self._clock, shards=shards, wanted=dealt, **me),
            served=self.served,
        )

    def _deal(self, queues: Sequence[QueueSpec]) -> dict[ShardRef, tuple[QueueSpec, Lane]]:
        by_shard = {shard: queue for queue in queues for shard in queue.shard_refs()}
        dealt = self._splitter(list(by_shard), len(self._lanes))
        lane_of = {shard: lane for lane, shards in zip(self._lanes, dealt, strict=True) for shard in shards}
        return {shard: (queue, lane_of[shard]) for shard, queue in by_shard.items() if shard in lane_of}

    def _to_serve(self) -> list[QueueSpec]:
        return [queue for queue in self._queues if queue.name in self.served and not self.is_quiet]

    def _heard(self, shard: ShardRef, perform_in: float | None) -> None:
        lane = self._ownership.lane_of(shard)
        if lane is None:
            return
        if perform_in is None:
            self._ownership.look_now()
        else:
            lane.hear(shard, perform_in)

    def _refresh(self) -> None:
        for lane in self._lanes:
            lane.refresh()


def _picture(lane: Lane, now: float) -> dict[str, Any]:
    batch, running = lane.batch, None
    if batch is not None:
        running = {
            "shard": str(batch.shard),
            "ids": [job.id for job in batch.jobs],
            "seconds": round(now - batch.began_at, 3),
            "overdue": batch.overdue(now),
        }
    return {"name": lane.name, "shards": [str(shard) for shard in lane.shards()], "running": running}
