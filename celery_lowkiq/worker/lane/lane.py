"""A thread with the shards pinned to it: pick a shard, claim, run, settle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from celery_lowkiq.rules.claims import Due
from celery_lowkiq.rules.models import Batch, ShardRef
from celery_lowkiq.rules.schedulers import Scheduler

from ..context import CRASHED, PARKED, Surroundings
from ..owned_shard import Held
from .batch_runner import Work
from .due_poll import Question
from .due_table import Agenda
from .shard_picker import Picking

T = TypeVar("T")

logger = logging.getLogger("celery_lowkiq.worker")

#: Where asking about all shards takes long, a lane rests for so many times as long before it asks again,
#: and at most for so many poll intervals. Announcements go on meanwhile.
ASKING = 4.0
LONGEST_POLL = 10.0


class Lane:
    """Works its shards one batch at a time until it is stopped."""

    def __init__(self, number: int, scheduler: Scheduler, around: Surroundings) -> None:
        self.name = f"lane-{number}"
        self.crashed = False
        self.ended = False
        self._picking = Picking(scheduler, self.name)
        self._around = around
        self._changed = threading.Condition()
        self._agenda = Agenda(around.clock)
        self._held: dict[ShardRef, Held] = {}
        self._working: ShardRef | None = None
        self._work = Work(self, around)
        #: Whether to ask about all shards, and those that were never asked about, in order.
        self._refresh = False
        self._unknown: dict[ShardRef, None] = {}
        self._idle = False
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
            # To ask about all of them for each one that comes is quadratic while a node takes its shards.
            self._unknown[held.shard] = None
            self._changed.notify()

    def drop(self, shard: ShardRef) -> None:
        """Begin nothing more of a shard; it is out of the lane's hands when it is not ``working`` on it."""
        with self._changed:
            self._held.pop(shard, None)
            self._unknown.pop(shard, None)
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

    def questions(self, asking: bool, everything: bool) -> list[Question]:
        """What it would ask about its shards, or about those only that it has never asked about; nothing when
        it is busy, unless it is the one ``asking``.
        """
        with self._changed:
            if not (asking or self._idle):
                return []
            shards, self._unknown = self._unknown, {}
            if everything:
                # Whatever it was to ask for, is asked for now.
                shards = dict.fromkeys(self._held)
                self._refresh = False
                self._poll_at = self._around.clock.monotonic() + self._around.poll_interval
            return [Question(shard, self._held[shard].in_hand, self._agenda.ask(shard)) for shard in shards]

    def learn(self, answers: Sequence[tuple[Question, Due]], seconds: float) -> None:
        """The answers, which took the store so long."""
        rest = min(ASKING * seconds, LONGEST_POLL * self._around.poll_interval)
        with self._changed:
            self._poll_at = max(self._poll_at, self._around.clock.monotonic() + rest)
            for question, due in answers:
                if question.shard in self._held:
                    self._agenda.learn(question.shard, due, question.number)
            self._changed.notify()

    def try_all(self) -> None:
        """One shard may be at fault: the claims will tell, each for its own."""
        with self._changed:
            self._poll_at = self._around.clock.monotonic() + max(PARKED, self._around.poll_interval)
            for shard in self._held:
                self._agenda.hear(shard, self._agenda.now())
            self._changed.notify()

    @property
    def load(self) -> int:
        """How many shards it serves now."""
        return len(self._held)

    @property
    def working(self) -> frozenset[ShardRef]:
        """The shards that it claims from, runs or settles now; a crashed lane keeps them."""
        return frozenset(shard for shard in (self._working, self._work.shard) if shard is not None)

    @property
    def batch(self) -> Batch | None:
        """What runs now."""
        return self._work.batch

    def give_back(self, now: float) -> None:
        """Return what has waited for too long behind a run, while that goes on; ``now`` is monotonic."""
        self._work.give_back(now)

    def shards(self) -> list[ShardRef]:
        """The shards that it serves now."""
        with self._changed:
            return sorted(self._held, key=attrgetter("queue", "index"))

    # -- the thread

    def _main(self) -> None:
        try:
            while self._stopping_at is None or self._work.unsettled:
                held = self._next()
                if held is not None:
                    self._do(held)
                elif self._work.unsettled:
                    self._work.finish()
        except BaseException as error:  # noqa: BLE001 - whatever it is, a lane never ends silently
            self._crash(error)
        finally:
            self.ended = True
            self._around.freed()

    def _crash(self, error: BaseException) -> None:
        self.crashed = True
        batch = self._work.batch
        self._work.save()
        logger.critical("%s ends with %r on %s: the worker stops", self.name, error, batch and batch.shard)
        self._around.host.last_words(error)
        code = error.code if isinstance(error, SystemExit) else CRASHED
        exitcode = code if isinstance(code, int) and code else CRASHED
        self._around.host.stop(exitcode, f"{self.name}: {error!r}")

    def _next(self) -> Held | None:
        """The shard to work now. Without one, return None: at once when something is to be settled, else
        after waiting for the next reason to look.
        """
        if self._stopping_at is not None:
            return None
        everything = self._take_refresh()
        if everything or self._unknown:
            self._around.survey().ask(self, everything, self._gives_up)
        with self._changed:
            due, now = self._workable(), self._agenda.now()
            shard = self._picking.pick(due, now)
            if shard is not None:
                held = self._held[shard]
                self._working = held.shard
                return held
            told = self._refresh or self._unknown or self._stopping_at is not None
            if not told and not self._work.unsettled:
                # What is due and not picked is offered again with the next reason to look, or the next poll.
                coming = min((when for when in due.values() if when > now), default=None)
                left = self._agenda.seconds_until(coming)
                poll = max(0.0, self._poll_at - self._around.clock.monotonic())
                self._idle = True
                self._changed.wait(poll if left is None else min(left, poll))
                self._idle = False
            return None

    def _workable(self) -> dict[ShardRef, float]:
        """Due times of the shards that may be claimed from, not before the next token of a limited queue;
        a renewal brings back those that may not.
        """
        now = self._around.clock.monotonic()
        due = self._agenda.due()
        found = {
            shard: due[shard] for shard, held in self._held.items() if shard in due and held.may_claim(now)
        }
        for queue, seconds in self._around.limits.closed().items():
            opens_at = self._agenda.now() + seconds
            found |= {s: max(when, opens_at) for s, when in found.items() if s.queue == queue}
        return found

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

    def _do(self, held: Held) -> None:
        threading.current_thread().name = f"{self.name} {held.shard}"
        try:
            self._work.do(held)
        finally:
            self._working = None
            threading.current_thread().name = self.name

    # -- for its work

    def know(self, shard: ShardRef, due: Due) -> None:
        """The last answer about a shard."""
        with self._changed:
            if shard in self._held:
                self._agenda.learn(shard, due)

    def park(self, shard: ShardRef, seconds: float) -> None:
        """Leave a shard alone for a while (s)."""
        with self._changed:
            self._agenda.park(shard, seconds)

    def serves(self, held: Held) -> bool:
        """Whether a lease is still this lane's to work under."""
        return self._held.get(held.shard) is held

    @property
    def stopping(self) -> bool:
        """Whether nothing new is to begin."""
        return self._stopping_at is not None

    def ask(self, shards: Sequence[ShardRef], question: Callable[[], T]) -> T:
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
