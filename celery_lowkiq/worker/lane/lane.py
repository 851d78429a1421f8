"""A worker thread with shards pinned to it: pick a shard, claim, run, settle."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import Batch, ShardRef
from celery_lowkiq.rules.schedulers import Scheduler, lag

from ..context import WorkerContext
from ..owned_shard import OwnedShard
from ..ports import EXIT_CRASHED
from .batch_runner import BatchRunner
from .due_poll import DuePoller
from .lane_state import LaneState


class Lane:
    """Works its shards one batch at a time until it is stopped."""

    def __init__(self, state: LaneState, poller: DuePoller, scheduler: Scheduler, ctx: WorkerContext) -> None:
        """``state`` is this lane's alone; ``poller`` is shared by all lanes."""
        self.name: str = state.name
        self.crashed: bool = False
        self.ended: bool = False
        self._state = state
        self._poller = poller
        self._picker = ShardPicker(scheduler, self.name)
        self._runner = BatchRunner(state, ctx)
        self._ctx = ctx
        self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)

    # -- called from other threads

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop_claiming(self) -> None:
        """Start no new batch. Safe in a signal handler; an idle lane sleeps on until :meth:`stop`."""
        self._state.stop_claiming()

    def stop(self) -> None:
        """Start no new batch; the running one is finished and settled."""
        self._state.stop()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def serve(self, owned: OwnedShard) -> None:
        """Work a shard from now on."""
        self._state.serve(owned)

    def drop(self, shard: ShardRef) -> None:
        """Start no new batch of a shard; the lane is done with it when it is not in :attr:`working`."""
        self._state.drop(shard)

    def announce(self, shard: ShardRef, perform_in: float) -> None:
        """Handle the announcement of a push."""
        self._state.announce(shard, perform_in)

    def refresh(self) -> None:
        """Poll all shards soon."""
        self._state.refresh()

    def shards(self) -> list[ShardRef]:
        """Return the shards of this lane, sorted."""
        return self._state.shards()

    @property
    def load(self) -> int:
        """Number of shards of this lane."""
        return self._state.load

    @property
    def working(self) -> frozenset[ShardRef]:
        """Shards that the lane claims from, runs or settles now; a crashed lane keeps them."""
        shards = (self._state.working, self._runner.unsettled)
        return frozenset(shard for shard in shards if shard is not None)

    @property
    def batch(self) -> Batch | None:
        """The running batch."""
        return self._runner.batch

    def return_overdue(self, now: float) -> None:
        """Return batches that have waited too long behind a running one; ``now`` is monotonic."""
        self._runner.return_overdue(now)

    # -- the thread

    def _main(self) -> None:
        try:
            while not self._state.stopping or self._runner.unsettled:
                owned = self._next()
                if owned is not None:
                    self._run(owned)
                elif self._runner.unsettled:
                    self._runner.settle()
        except BaseException as error:  # noqa: BLE001 - whatever it is, a lane never ends silently
            self._crash(error)
        finally:
            self.ended = True
            self._ctx.mailbox.wake()

    def _next(self) -> OwnedShard | None:
        if self._state.stopping:
            return None
        everything = self._state.take_poll()
        if everything is not None:
            self._poller.poll(self._state, everything)
        return self._state.begin_next(self._picker.pick, wait=not self._runner.unsettled)

    def _run(self, owned: OwnedShard) -> None:
        threading.current_thread().name = f"{self.name} {owned.shard}"
        try:
            self._runner.run_next(owned)
        finally:
            self._state.end_working()
            threading.current_thread().name = self.name

    def _crash(self, error: BaseException) -> None:
        self.crashed = True
        batch = self._runner.batch
        self._runner.settle_after_crash()
        logger.critical("%s ends with %r on %s: the worker stops", self.name, error, batch and batch.shard)
        self._ctx.host.last_words(error)
        code = error.code if isinstance(error, SystemExit) else EXIT_CRASHED
        exitcode = code if isinstance(code, int) and code else EXIT_CRASHED
        self._ctx.host.stop(exitcode, f"{self.name}: {error!r}")


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
