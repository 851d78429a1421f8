"""A worker thread with shards pinned to it: pick a shard, claim, run, settle."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from itertools import islice

from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import Batch, ShardRef
from celery_lowkiq.rules.schedulers import Scheduler, lag

from ..context import WorkerContext
from ..forks import end_forks_by_signal
from ..owned_shard import OwnedShard
from ..ports import EXIT_CRASHED
from .claim_cycle import PARKED, ClaimCycle
from .lane_state import DueQuery, LaneState, PollAnswer


class Lane(LaneState):
    """Works its shards one batch at a time until it is stopped."""

    def __init__(self, name: str, ctx: WorkerContext, scheduler: Scheduler, peers: Sequence[Lane]) -> None:
        """``peers``: all lanes of the node, for which one lane polls."""
        super().__init__(name, ctx)
        self.crashed: bool = False
        self.ended: bool = False
        self.thread: threading.Thread = ctx.thread(name, self._main)
        self._peers = peers
        self._picker = ShardPicker(scheduler, name)
        self._cycle = ClaimCycle(self, ctx)

    @property
    def working(self) -> frozenset[ShardRef]:
        """Shards that the lane claims from, runs or settles now; a crashed lane keeps them."""
        shards = (self._picked, self._cycle.unsettled, *self._cycle.aside)
        return frozenset(shard for shard in shards if shard is not None)

    @property
    def batch(self) -> Batch | None:
        """The running batch."""
        return self._cycle.batch

    def mean_run(self, queue: str) -> float | None:
        """Return how long (s) the runs of a queue take here; None before the first has ended."""
        return self._cycle.mean_durations.get(queue)

    def seconds_run(self, now: float) -> float:
        """Return how many seconds of runs the lane had until ``now`` (monotonic)."""
        batch = self._cycle.batch
        return self._cycle.seconds_run + (0.0 if batch is None else max(0.0, now - batch.began_at))

    def return_unstarted(self, now: float) -> None:
        """Return batches that have waited too long behind a running one; ``now`` is monotonic."""
        self._cycle.return_unstarted(now)

    # -- the thread

    def _main(self) -> None:
        end_forks_by_signal()
        try:
            while not self.stopping or self._cycle.unsettled or self._cycle.aside:
                owned = self._next()
                if owned is not None:
                    self._run(owned)
                elif self._cycle.unsettled:
                    self._cycle.settle()
                elif self.stopping:
                    self._ctx.outage.stop.wait(PARKED)
                    self._cycle.settle_aside(at_once=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, a lane never ends silently
            self._crash(error)
        finally:
            self.ended = True
            self._ctx.mailbox.wake()

    def _next(self) -> OwnedShard | None:
        if self.stopping:
            return None
        everything = self.take_poll()
        if everything is not None:
            self._poll(everything)
        # Also of a lane that always has something to run: the next owner of a shard may wait for it.
        self._cycle.settle_aside()
        if self._cycle.unsettled:
            return self.begin_next(self._picker.pick, 0.0)
        return self.begin_next(self._picker.pick, PARKED if self._cycle.aside else math.inf)

    def _poll(self, everything: bool) -> None:
        """Ask Redis in one round trip for the due times of this lane and of all idle ones.

        Asks about all their shards, or about new ones.
        """
        asked = [(lane, lane.begin_poll(everything, lane is self)) for lane in self._peers]
        queries = [query for _, several in asked for query in several]
        if not queries:
            return
        try:
            dues, seconds = self._ctx.outage.retry(lambda: self._read_due(queries), self.gives_up)
        except StoreUnavailable:
            return
        except StoreError as error:
            logger.error("%s tries its shards one by one: %s", self.name, error, exc_info=error)
            for lane, _ in asked:
                lane.try_all()
            return
        if None in dues:
            # How long a master was waited for that is away says nothing about the load of the others.
            seconds = 0.0
        answers = zip(queries, dues, strict=True)
        for lane, several in asked:
            lane.end_poll(list(islice(answers, len(several))), seconds)

    def _read_due(self, queries: Sequence[DueQuery]) -> tuple[Sequence[PollAnswer], float]:
        """Return the due times, and how many seconds it took to read them."""
        clock, sent_at = self._ctx.clock, self._ctx.clock.monotonic()
        dues = self._ctx.store.next_due(
            [one.shard for one in queries],
            [one.open_claims for one in queries],
            [one.was_empty for one in queries],
        )
        return dues, clock.monotonic() - sent_at

    def _run(self, owned: OwnedShard) -> None:
        threading.current_thread().name = f"{self.name} {owned.shard}"
        try:
            self._cycle.run_next(owned)
        finally:
            self.end_working()
            threading.current_thread().name = self.name

    def _crash(self, error: BaseException) -> None:
        self.crashed = True
        batch = self._cycle.batch
        code = error.code if isinstance(error, SystemExit) else EXIT_CRASHED
        exitcode = code if isinstance(code, int) and code else EXIT_CRASHED

        def log() -> None:
            self._cycle.settle_after_crash()
            shard = batch and batch.shard
            logger.critical("%s ends with %r on %s: the worker stops", self.name, error, shard)

        self._ctx.stop_worker(self.name, error, exitcode, log)


class ShardPicker:
    """Calls a lane's scheduler, which may be the user's, and checks its answer.

    A wrong answer is logged once; the shard is then picked by lag.
    """

    def __init__(self, scheduler: Scheduler, lane: str) -> None:
        self._scheduler = scheduler
        self._lane = lane
        self._by_lag = lag()
        self._failing = False

    def pick(self, due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        """Return one of the due shards; None when there is none, or the scheduler wants none."""
        ready = {shard: when for shard, when in due.items() if when <= now}
        if not ready:
            return None
        try:
            shard = self._scheduler(ready, now)
            wrong = shard is not None and due.get(shard, math.inf) > now
        except Exception:  # noqa: BLE001 - of the user's; it is logged
            self._log_once("lowkiq_scheduler failed on %s: it picks by lag until that works", exc_info=True)
            return self._by_lag(due, now)
        if wrong:
            self._log_once(
                "lowkiq_scheduler returned on %s %r, which is not a shard with due jobs: it picks by lag "
                "until the answer is one of them, or None",
                shard,
            )
            return self._by_lag(due, now)
        self._failing = False
        return shard

    def _log_once(self, text: str, *values: object, exc_info: bool = False) -> None:
        if not self._failing:
            self._failing = True
            logger.error(text, self._lane, *values, exc_info=exc_info)
