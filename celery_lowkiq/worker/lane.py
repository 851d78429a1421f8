"""A thread with the shards pinned to it: pick a shard, claim, run, settle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.errors import NotOwner, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Batch, Claim, Due, Settled, ShardRef, ToClaim
from celery_lowkiq.rules.pace import batches_to_claim, mean_duration
from celery_lowkiq.rules.schedulers import Scheduler

from .agenda import Agenda
from .exclusion import Exclusion
from .held import Held
from .outage import Outage
from .ports import Host, Runner, Store
from .window import Window

T = TypeVar("T")

logger = logging.getLogger("celery_lowkiq.worker")

#: Exit status after a task raised something that is no Exception.
CRASHED = 70
#: A shard on which a script fails for a reason of its own is left alone for so many s.
PARKED = 5.0
#: How long a shard with a suspect waits for another lane's suspect, in s.
SUSPECT_PAUSE = 0.2


@dataclass(frozen=True)
class Surroundings:
    """What all lanes of a node share."""

    store: Store
    runner: Runner
    host: Host
    clock: Clock
    outage: Outage
    exclusion: Exclusion
    poll_interval: float
    lease_seconds: float
    #: Most batches that a lane claims at once.
    window: int
    #: Told when a shard turns out to be another node's.
    lost: Callable[[Held], None]
    #: Held by the lane that runs a suspect.
    suspects: threading.Lock
    #: Told when a lane has ended, or is done with a shard that was taken from it.
    freed: Callable[[], None]


class Lane:
    """Works its shards one batch at a time until it is stopped."""

    def __init__(self, number: int, scheduler: Scheduler, around: Surroundings) -> None:
        self.name = f"lane-{number}"
        self.crashed = False
        self.ended = False
        self._scheduler = scheduler
        self._around = around
        self._changed = threading.Condition()
        self._agenda = Agenda(around.clock)
        self._held: dict[ShardRef, Held] = {}
        self._working: ShardRef | None = None
        self._batch: Batch | None = None
        #: What is claimed and not settled yet.
        self._window: Window | None = None
        #: Mean duration of a batch (s), by queue.
        self._pace: dict[str, float] = {}
        self._refresh = False
        self._poll_at = around.clock.monotonic() + around.poll_interval
        self._stopping_at: float | None = None
        self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)

    # -- called from other threads

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def hold(self) -> None:
        """Begin nothing new. Takes no lock, so that a signal handler may call it; an idle lane sleeps on."""
        self._stopping_at = self._stopping_at or self._around.clock.monotonic()

    def stop(self) -> None:
        """Begin nothing new; the running batch is finished and settled."""
        with self._changed:
            self.hold()
            self._changed.notify()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def serve(self, held: Held) -> None:
        """Work a shard from now on."""
        with self._changed:
            self._held[held.shard] = held
            self._refresh = True
            self._changed.notify()

    def drop(self, shard: ShardRef) -> None:
        """Begin nothing more of a shard; it is out of the lane's hands when it is not ``working`` on it."""
        with self._changed:
            self._held.pop(shard, None)
            self._agenda.forget(shard)

    def hear(self, shard: ShardRef, perform_in: float) -> None:
        """Something was pushed."""
        with self._changed:
            if shard in self._held:
                self._agenda.hear(shard, perform_in)
                self._changed.notify()

    def refresh(self) -> None:
        """Ask the store about all shards: announcements may have been missed, or a lease was renewed."""
        with self._changed:
            self._refresh = True
            self._changed.notify()

    def give_back(self, now: float) -> None:
        """Return what has waited for too long behind a run, while that goes on; ``now`` is monotonic."""
        window = self._window
        returned = window.overdue(now) if window is not None else None
        if window is None or returned is None:
            return
        try:
            self._around.store.exchange(returned, None)
        except StoreUnavailable:
            window.put_off(returned)

    @property
    def working(self) -> frozenset[ShardRef]:
        """The shards that it claims from, runs or settles now; a crashed lane keeps them."""
        working, window = self._working, self._window
        claimed = () if window is None else (window.held.shard,)
        return frozenset(claimed if working is None else (working, *claimed))

    @property
    def batch(self) -> Batch | None:
        """What runs now."""
        return self._batch

    def shards(self) -> list[ShardRef]:
        """The shards that it serves now."""
        with self._changed:
            return sorted(self._held)

    # -- the thread

    def _main(self) -> None:
        try:
            while self._stopping_at is None or self._window is not None:
                held = self._next()
                if held is not None:
                    self._work(held)
                elif self._window is not None:
                    self._finish()
        except BaseException as error:  # noqa: BLE001 - whatever it is, a lane never ends silently
            self._crash(error)
        finally:
            self.ended = True
            self._around.freed()

    def _crash(self, error: BaseException) -> None:
        self.crashed = True
        batch = self._batch
        self._save()
        logger.critical("%s ends with %r on %s: the worker stops", self.name, error, batch and batch.shard)
        self._around.host.last_words(error)
        code = error.code if isinstance(error, SystemExit) else CRASHED
        exitcode = code if isinstance(code, int) and code else CRASHED
        self._around.host.stop(exitcode, f"{self.name}: {error!r}")

    def _save(self) -> None:
        """Of what a crashed lane has claimed, only the batch that was running counts as crashed."""
        if self._window is None or self._batch is None:
            return
        try:
            self._around.store.exchange(self._window.to_settle(), None)
        except StoreError as error:
            logger.error("what %s had run before could not be settled: %s", self.name, error)

    def _next(self) -> Held | None:
        """The shard to work now. Without one, return None: at once when something is to be settled, else
        after waiting for the next reason to look.
        """
        if self._stopping_at is not None:
            return None
        if self._take_refresh():
            self._ask_all()
        with self._changed:
            due, now = self._workable(), self._agenda.now()
            shard = self._scheduler(due, now)
            if shard is not None:
                self._working = shard
                return self._held[shard]
            if not self._refresh and self._stopping_at is None and self._window is None:
                # What is due and not picked is offered again with the next reason to look, or the next poll.
                coming = min((when for when in due.values() if when > now), default=None)
                left = self._agenda.seconds_until(coming)
                poll = max(0.0, self._poll_at - self._around.clock.monotonic())
                self._changed.wait(poll if left is None else min(left, poll))
            return None

    def _workable(self) -> dict[ShardRef, float]:
        """Due times of the shards that may be claimed from; a renewal brings back those that may not."""
        now = self._around.clock.monotonic()
        due = self._agenda.due()
        return {
            shard: due[shard] for shard, held in self._held.items() if shard in due and held.may_claim(now)
        }

    def _take_refresh(self) -> bool:
        """Whether to ask about all shards. By the clock, not only when idle: a backlog in one shard must
        not keep the lane from others whose announcement was lost.
        """
        now = self._around.clock.monotonic()
        with self._changed:
            if not self._refresh and now < self._poll_at:
                return False
            self._refresh, self._poll_at = False, now + self._around.poll_interval
            return True

    def _ask_all(self) -> None:
        with self._changed:
            in_hand = {shard: held.in_hand for shard, held in self._held.items()}
        shards = list(in_hand)
        try:
            dues = self._ask(shards, lambda: self._around.store.next_due(shards, list(in_hand.values())))
        except StoreUnavailable:
            return
        except StoreError:
            logger.exception("%s tries its shards one by one", self.name)
            self._try_all()
            return
        for shard, due in zip(shards, dues, strict=True):
            self._learn(shard, due)

    def _try_all(self) -> None:
        """One shard may be at fault: the claims will tell, each for its own."""
        with self._changed:
            self._poll_at = self._around.clock.monotonic() + max(PARKED, self._around.poll_interval)
            for shard in self._held:
                self._agenda.hear(shard, self._agenda.now())

    def _learn(self, shard: ShardRef, due: Due) -> None:
        with self._changed:
            if shard in self._held:
                self._agenda.learn(shard, due)

    def _work(self, held: Held) -> None:
        threading.current_thread().name = f"{self.name} {held.shard}"
        try:
            self._claim_and_run(held)
        except StoreError as error:
            self._failed(held, error)
        finally:
            self._working = None
            threading.current_thread().name = self.name

    def _finish(self) -> None:
        """Settle what has run, without claiming anything."""
        try:
            self._exchange(None)
        except StoreUnavailable as error:
            window, self._window = self._window, None
            if window is not None:
                self._failed(window.held, error)

    def _failed(self, held: Held, error: StoreError) -> None:
        if isinstance(error, NotOwner):
            logger.warning("shard %s has changed hands: this node leaves it", held.shard)
            self.drop(held.shard)
            self._around.lost(held)
            self._forgive(held)
        elif isinstance(error, StoreUnavailable):
            logger.error(
                "gave up on Redis while stopping: what was claimed of %s will be recovered", held.shard
            )
        else:
            logger.error("shard %s is left alone for %.0f s: %s", held.shard, PARKED, error, exc_info=error)
            with self._changed:
                self._agenda.park(held.shard, PARKED)

    def _forgive(self, held: Held) -> None:
        """Whoever took the shard thought that this node had died."""
        try:
            self._around.store.forgive(held.lease)
        except StoreError as error:
            logger.warning("deaths that were counted for %s could not be taken back: %s", held.shard, error)

    def _claim_and_run(self, held: Held) -> None:
        """One suspect at a time on a node: if it dies, that one is to blame."""
        lock = self._around.suspects
        leave = lock.acquire(blocking=False)
        try:
            claim = self._exchange(self._wish(held, suspects=leave))
            assert claim is not None
            if leave and not claim.suspect:
                lock.release()
                leave = False
            if claim.suspect_due:
                with self._changed:
                    self._agenda.park(held.shard, SUSPECT_PAUSE)
            self._run(held, claim)
            if leave:
                self._finish()
        finally:
            if leave:
                lock.release()

    def _wish(self, held: Held, suspects: bool) -> ToClaim:
        held.request += 1
        batches = batches_to_claim(self._pace.get(held.queue.name), self._around.window)
        # What is settled in the same breath is still in hand: the settle alone may fail.
        return ToClaim(held.queue, held.lease, held.request, held.in_hand, suspects, batches)

    def _exchange(self, wish: ToClaim | None) -> Claim | None:
        """Settle what has run, and claim, in one round trip. Raises what the claim was answered."""
        window = self._window
        to_settle = window.to_settle() if window is not None else None
        shards = [asked.lease.shard for asked in (to_settle, wish) if asked is not None]
        store = self._around.store
        settled, claim = self._ask(shards, lambda: store.exchange(to_settle, wish))
        if window is not None:
            self._window = None
            assert settled is not None
            self._settled(window, settled)
        if isinstance(claim, StoreError):
            raise claim
        if claim is not None and wish is not None:
            self._learn(wish.lease.shard, Due(claim.next_due, claim.now))
        return claim

    def _settled(self, window: Window, settled: Settled | StoreError) -> None:
        held = window.held
        held.let_go(window.number)
        if isinstance(settled, StoreError):
            self._failed(held, settled)
        else:
            self._learn(held.shard, Due(settled.next_due, settled.now))
            for batch in window.ran:
                self._around.runner.settled(batch, settled.accepted)
        with self._changed:
            dropped = held.shard not in self._held
        if dropped:
            self._around.freed()

    def _run(self, held: Held, claim: Claim) -> None:
        if not claim.jobs:
            return
        held.took(claim.number)
        clock = self._around.clock
        now = clock.monotonic()
        window = self._window = Window(held, claim, now)
        while self._may_begin(held, now) and (batch := window.next(now)) is not None:
            self._batch = batch
            self._around.exclusion.begin(held)
            try:
                verdicts = self._around.runner.run(batch)
            finally:
                self._around.exclusion.end(held)
            window.add(batch, verdicts)
            self._batch = None
            began_at, now = now, clock.monotonic()
            name = held.queue.name
            self._pace[name] = mean_duration(self._pace.get(name), now - began_at)

    def _may_begin(self, held: Held, now: float) -> bool:
        """The answer of a claim may be late: after an outage another node may be about to take the shard."""
        return self._stopping_at is None and held.may_claim(now) and self._held.get(held.shard) is held

    def _ask(self, shards: Sequence[ShardRef], question: Callable[[], T]) -> T:
        """The store's answer, however long it takes; what is heard about the shards meanwhile outlives it."""
        with self._changed:
            for shard in shards:
                self._agenda.ask(shard)
        return self._around.outage.survive(question, self._gives_up)

    def _gives_up(self) -> bool:
        """A stopping lane gives Redis one lease time to come back; an abandoned one none."""
        stopping_at = self._stopping_at
        if stopping_at is None or self._around.outage.stop.is_set():
            return stopping_at is not None
        return self._around.clock.monotonic() - stopping_at > self._around.lease_seconds
