"""Lanes: threads that work shards, one batch at a time."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import Callable, KeysView, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypeVar

from celery_lowkiq.rules.basics import Clock
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.claims import (
    SENT_AGAIN,
    Claim,
    ClaimRequest,
    Due,
    OpenClaims,
    Scheduler,
    SettleReply,
    SettleRequest,
    lag,
)
from celery_lowkiq.rules.errors import NotOwner, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Batch, Disposition, Job, Settlement, ShardRef
from celery_lowkiq.rules.policies import Tokens, run_count
from celery_lowkiq.worker.context import WorkerContext
from celery_lowkiq.worker.forks import end_forks_by_signal, staying
from celery_lowkiq.worker.owned_shard import OwnedShard
from celery_lowkiq.worker.ports import EXIT_CRASHED

# When each shard of a lane has its next due job, on the clock of its master.

#: Seconds by which a clock may drift from the monotonic one between two replies.
DRIFT = 0.05


class DueTable:
    """Due times by shard, from replies of the store and announcements of pushes. Not locked.

    The masters of a cluster have clocks of their own. Redis's clock is that of one of them here, to which the
    due times in shards of others are converted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[ShardRef, float] = {}
        #: Announcements since the last query about a shard was sent.
        self._announced: dict[ShardRef, float] = {}
        #: Number of the last query about a shard; replies to earlier ones are outdated.
        self._last_query: dict[ShardRef, int] = {}
        #: Shards that a query showed to be empty, with the open claims that it named. Until these change, or
        #: a claim or settle is sent, only a push can add jobs.
        self._empty: dict[ShardRef, OpenClaims] = {}
        self._queries = 0
        #: When (monotonic) the last query, claim or settle of a shard was sent.
        self._sent_at: dict[ShardRef, float] = {}
        #: Redis's clock minus the monotonic one, at the least and at the most, and the shard that showed it.
        self._offset: tuple[float, float] | None = None
        self._shown_by: ShardRef | None = None
        #: Seconds by which the clocks of other masters are ahead, by shard.
        self._ahead: dict[ShardRef, float] = {}

    def now(self, shard: ShardRef | None = None) -> float:
        """Return Redis's clock (Unix s), or that of a shard's master; 0 before the first reply."""
        if self._offset is None:
            return 0.0
        ahead = self._ahead.get(shard, 0.0) if shard is not None else 0.0
        return self._clock.monotonic() + self._offset[0] + ahead

    def begin_query(self, shard: ShardRef) -> int:
        """Return the number of a query that is sent now: its reply includes all earlier announcements."""
        self._announced.pop(shard, None)
        self._sent_at[shard] = self._clock.monotonic()
        self._queries += 1
        self._last_query[shard] = self._queries
        return self._queries

    def begin_change(self, shard: ShardRef) -> None:
        """Record that a claim or settle is sent now, whose reply includes all earlier announcements."""
        self.begin_query(shard)
        self._empty.pop(shard, None)

    def was_empty(self, shard: ShardRef, open_claims: OpenClaims) -> bool:
        """Whether the last query showed no job, and nothing was announced, claimed or settled since."""
        return self._empty.get(shard) is open_claims and shard not in self._due

    def doubt(self) -> None:
        """Forget which shards were empty, and ignore replies on their way: Redis may be another one."""
        self._empty.clear()
        self._last_query.clear()

    def record(
        self, shard: ShardRef, due: Due, query: int | None = None, open_claims: OpenClaims | None = None
    ) -> None:
        """Record a reply of the store, to a ``query`` that named these ``open_claims``.

        Announcements since the query was sent stay, also for the second reply of a settle with a claim: the
        pushes that follow an announced one are silent. A reply to any ``query`` but the last is ignored.
        """
        if query not in (None, self._last_query.get(shard)):
            return
        self._record_clock(shard, due.now)
        self._due.pop(shard, None)
        self._empty.pop(shard, None)
        for perform_in in (due.next_due, self._announced.get(shard)):
            if perform_in is not None:
                self._due[shard] = min(perform_in, self._due.get(shard, perform_in))
        if open_claims is not None and shard not in self._due:
            self._empty[shard] = open_claims

    def _record_clock(self, shard: ShardRef, now: float) -> None:
        # The reply was made between these two moments: clocks that may be equal are taken for one.
        least, most = now - self._clock.monotonic(), now - self._sent_at.get(shard, -math.inf)
        known = self._offset
        if known is not None and (least > known[1] + DRIFT or most < known[0] - DRIFT):
            if shard != self._shown_by:
                self._ahead[shard] = least - known[0]
                return
            # The clock was set, or the shard has another master: other shards tell anew.
            self._ahead.clear()
        self._ahead.pop(shard, None)
        self._offset, self._shown_by = (least, most), shard

    def announce(self, shard: ShardRef, perform_in: float) -> None:
        """Record an announced push: the shard has a job at this time or earlier."""
        for times in (self._due, self._announced):
            times[shard] = min(perform_in, times.get(shard, perform_in))

    def try_soon(self, shard: ShardRef, seconds: float) -> None:
        """Make a shard due now, unless it is due within ``seconds``, as a deferred one is."""
        now = self.now(shard)
        if self._due.get(shard, math.inf) > now + seconds:
            self._due[shard] = now

    def defer(self, shard: ShardRef, seconds: float) -> None:
        """Set the due time of a shard to ``seconds`` from now."""
        self._due[shard] = self.now(shard) + seconds

    def remove(self, shard: ShardRef) -> None:
        """Remove a shard that left the lane."""
        tables = self._due, self._announced, self._last_query, self._empty, self._sent_at, self._ahead
        for values in tables:
            values.pop(shard, None)
        if shard == self._shown_by:
            self._shown_by = None

    def due(self) -> dict[ShardRef, float]:
        """Return due times by shard; shards without jobs are missing."""
        if not self._ahead:
            return dict(self._due)
        return {shard: at - self._ahead.get(shard, 0.0) for shard, at in self._due.items()}


# What a lane shares with other threads: its shards, their due times, and what it is to do next.

T = TypeVar("T")

#: Seconds for which a lane leaves a shard alone after a script failed on it.
FAILED_SHARD_DELAY = 5.0
#: A poll that takes long is followed by a rest of this many times its duration, and of at most this many poll
#: intervals. Announcements still arrive meanwhile.
POLL_REST = 4.0
MAX_POLL_INTERVALS = 10.0

#: Of one shard.
PollAnswer: TypeAlias = Due | ShardDamaged | None
#: Picks one of the due shards, given due times and Redis's clock.
Pick = Callable[[Mapping[ShardRef, float], float], "ShardRef | None"]


class DueQuery(NamedTuple):
    """Asks for the due time of one shard; ``number`` matches the answer to it."""

    shard: ShardRef
    open_claims: OpenClaims
    was_empty: bool
    number: int


class LaneState:
    """Guarded by one condition, on which an idle lane waits.

    Changed by the lane itself, by ownership (shards come and go), by the waker (announcements), and by lanes
    that poll for all.
    """

    def __init__(self, name: str, ctx: WorkerContext) -> None:
        self.name = name
        self._ctx = ctx
        self._changed = threading.Condition()
        self._due = DueTable(ctx.clock)
        self._owned: dict[ShardRef, OwnedShard] = {}
        #: The shard that the lane works now.
        self._picked: ShardRef | None = None
        #: Whether to poll all shards, and those that were never polled, in order.
        self._refresh = False
        self._unpolled: dict[ShardRef, None] = {}
        self._idle = False
        self._poll_at = ctx.clock.monotonic() + ctx.poll_interval
        self._stopping_at: float | None = None

    # -- stopping

    @property
    def stopping(self) -> bool:
        """Whether no new batch may start."""
        return self._stopping_at is not None

    def stop_claiming(self) -> None:
        """Start no new batch. Takes no lock, for signal handlers; an idle lane is not woken."""
        self._stopping_at = self._stopping_at or self._ctx.clock.monotonic()

    def stop(self) -> None:
        """Start no new batch, and wake the lane."""
        with self._changed:
            self.stop_claiming()
            self._changed.notify()

    # -- shards

    def serve(self, owned: OwnedShard) -> None:
        """Add a shard."""
        with self._changed:
            self._owned[owned.shard] = owned
            # Polling all shards for each new one would be quadratic while a node acquires its shards.
            self._unpolled[owned.shard] = None
            self._changed.notify()

    def drop(self, shard: ShardRef) -> None:
        """Remove a shard: no new batch of it starts. The lane may still be working it."""
        with self._changed:
            self._owned.pop(shard, None)
            self._unpolled.pop(shard, None)
            self._due.remove(shard)

    def serves(self, owned: OwnedShard) -> bool:
        """Whether the lane still works under this lease."""
        return self._owned.get(owned.shard) is owned

    def may_start(self, owned: OwnedShard, now: float) -> bool:
        """Whether a claimed batch may start ``now`` (monotonic), which is asked for each one."""
        return (
            self._stopping_at is None and owned.may_claim(now) and self._owned.get(owned.lease.shard) is owned
        )

    def shards(self) -> list[ShardRef]:
        """Return the shards, sorted."""
        with self._changed:
            return sorted(self._owned, key=attrgetter("queue", "index"))

    @property
    def load(self) -> int:
        """Number of shards."""
        return len(self._owned)

    # -- due times

    def announce(self, shard: ShardRef, perform_in: float) -> None:
        """Record a push, and wake the lane."""
        with self._changed:
            if shard in self._owned:
                self._due.announce(shard, perform_in)
                self._changed.notify()

    def refresh(self) -> None:
        """Poll all shards soon: announcements may have been missed, or a late lease was renewed."""
        with self._changed:
            self._refresh = True
            self._due.doubt()
            self._changed.notify()

    def record(self, shard: ShardRef, due: Due) -> None:
        """Record the due time in the reply of a claim or settle."""
        with self._changed:
            if shard in self._owned:
                self._due.record(shard, due)

    def defer(self, shard: ShardRef, seconds: float) -> None:
        """Leave a shard alone for ``seconds``."""
        with self._changed:
            self._due.defer(shard, seconds)

    # -- polling

    def take_poll(self) -> bool | None:
        """Return what the lane is to poll now: True for all shards, False for new ones, None for nothing.

        A poll is due by the clock, also for a busy lane: a backlog in one shard must not hide another shard
        whose announcement was lost.
        """
        now = self._ctx.clock.monotonic()
        with self._changed:
            if not self._refresh and now < self._poll_at:
                return False if self._unpolled else None
            self._refresh, self._poll_at = False, now + self._ctx.poll_interval
            return True

    def begin_poll(self, everything: bool, asking: bool) -> list[DueQuery]:
        """Return queries about all shards, or about new ones; none for a busy lane that is not ``asking``."""
        with self._changed:
            if not (asking or self._idle):
                return []
            shards, self._unpolled = self._unpolled, {}
            if everything:
                shards = dict.fromkeys(self._owned)
                self._refresh = False
                self._poll_at = self._ctx.clock.monotonic() + self._ctx.poll_interval
            return list(map(self._query, shards))

    def _query(self, shard: ShardRef) -> DueQuery:
        open_claims = self._owned[shard].open_claims
        was_empty = self._due.was_empty(shard, open_claims)
        return DueQuery(shard, open_claims, was_empty, self._due.begin_query(shard))

    def end_poll(self, answers: Sequence[tuple[DueQuery, PollAnswer]], seconds: float) -> None:
        """Record the answers of a poll that took ``seconds``; None is an unknown due time.

        A damaged shard is claimed from, which reports the damage, or repairs it.
        """
        rest = min(POLL_REST * seconds, MAX_POLL_INTERVALS * self._ctx.poll_interval)
        with self._changed:
            self._poll_at = max(self._poll_at, self._ctx.clock.monotonic() + rest)
            for query, due in answers:
                if query.shard not in self._owned:
                    continue
                if isinstance(due, ShardDamaged):
                    self._due.try_soon(query.shard, FAILED_SHARD_DELAY)
                elif due is not None:
                    self._due.record(query.shard, due, query.number, query.open_claims)
            self._changed.notify()

    def try_all(self) -> None:
        """Claim from every shard: a poll failed, and the claims show which shard causes it."""
        with self._changed:
            delay = max(FAILED_SHARD_DELAY, self._ctx.poll_interval)
            self._poll_at = self._ctx.clock.monotonic() + delay
            for shard in self._owned:
                self._due.announce(shard, self._due.now(shard))
            self._changed.notify()

    # -- the lane's own thread

    def begin_next(self, pick: Pick, most: float) -> OwnedShard | None:
        """Pick the shard to work now. Without one, wait for the next reason to look, at ``most`` so many
        seconds, and return None.
        """
        with self._changed:
            due, now = self._claimable(), self._due.now()
            shard = pick(due, now)
            if shard is not None:
                self._picked = shard
                return self._owned[shard]
            if most and not (self._refresh or self._unpolled or self.stopping):
                # A due shard that was not picked is offered again at the next poll or wake-up.
                coming = min((when for when in due.values() if when > now), default=None)
                poll = min(max(0.0, self._poll_at - self._ctx.clock.monotonic()), most)
                self._idle = True
                self._changed.wait(poll if coming is None else min(max(0.0, coming - self._due.now()), poll))
                self._idle = False
            return None

    def end_working(self) -> None:
        """Record that the picked shard was worked."""
        self._picked = None

    def _claimable(self) -> dict[ShardRef, float]:
        """Due times of shards whose lease allows a claim, delayed until their queue has a token again."""
        now = self._ctx.clock.monotonic()
        due = self._due.due()
        found = {
            shard: due[shard] for shard, owned in self._owned.items() if shard in due and owned.may_claim(now)
        }
        until = self._ctx.rate_limiter.exhausted_until(now)
        ahead = self._due.now() - now
        found |= {s: max(when, until[s.queue] + ahead) for s, when in found.items() if s.queue in until}
        return found

    def request(self, shards: Sequence[ShardRef], action: Callable[[], T]) -> T:
        """Return the store's answer, however long it takes; announcements meanwhile are kept."""
        with self._changed:
            for shard in shards:
                self._due.begin_change(shard)
        return self._ctx.outage.retry(action, self.gives_up)

    def gives_up(self) -> bool:
        """Whether to stop waiting for Redis: one lease time after a stop, at once after an abandon."""
        stopping_at = self._stopping_at
        if stopping_at is None or self._ctx.outage.stop.is_set():
            return stopping_at is not None
        return self._ctx.clock.monotonic() - stopping_at > self._ctx.lease_seconds


# The batches of one claim, and how many batches to claim at once.
#
# A larger claim saves round trips; a smaller one keeps other lanes and nodes from waiting.

#: The batches of one claim should run within this many s.
TARGET_WINDOW = 0.03
#: Batches that have not started after this many s are returned with the settle.
MAX_WINDOW_AGE = 0.05
#: Batches that wait for this many s behind a running one are returned while it runs.
MAX_WAIT_BEHIND_RUN = 0.5
#: Weight of the last run in the mean duration.
WEIGHT = 0.3


def mean_duration(mean: float | None, duration: float) -> float:
    """Return the mean (s) after another run: follows a slow run at once, fast ones gradually."""
    if mean is None or duration > mean:
        return duration
    return (1 - WEIGHT) * mean + WEIGHT * duration


def batches_to_claim(mean: float | None, most: int) -> int:
    """Return how many batches of ``mean`` s to claim at once; one if no duration is known."""
    if mean is None:
        return 1
    return max(1, min(most, int(TARGET_WINDOW / mean) if mean > 0 else most))


class ClaimWindow:
    """Batches that wait, run, and are settled together.

    The lane starts batches and adds settlements; the window reaper takes away what waits for too long.
    """

    def __init__(self, owned: OwnedShard, claim: Claim, claimed_at: float) -> None:
        self.owned = owned
        self.number: int = claim.number
        self._suspect = claim.suspect
        self._redis_time = claim.now
        self.claimed_at = claimed_at
        self.ran: list[Batch] = []
        #: Monotonic time at which Redis first denied the right to settle it.
        self.denied_at: float | None = None
        self._settlements: list[Settlement] = []
        size = owned.queue.batch_size
        #: Taken from one end, by one method of ``deque``: so each batch goes to one thread, without a lock.
        self._waiting = deque([claim.jobs[i : i + size] for i in range(0, len(claim.jobs), size)])

    def next(self, now: float) -> Batch | None:
        """Return the batch to run at ``now`` (monotonic); None when the rest is to be returned."""
        if self.ran and now > self.claimed_at + MAX_WINDOW_AGE:
            return None
        try:
            jobs = self._waiting.popleft()
        except IndexError:
            return None
        owned = self.owned
        return Batch(
            owned.queue, owned.lease, self.number, jobs, owned.lost, now, self._redis_time, "", self._suspect
        )

    def add(self, batch: Batch, settlements: Sequence[Settlement]) -> None:
        """Record the settlements of a batch that has run."""
        self.ran.append(batch)
        self._settlements += settlements

    def to_settle(self, release: bool = False) -> SettleRequest:
        """Return all settlements; batches that have not run are returned unchanged."""
        settlements = (*self._settlements, *self._returned(self._take_waiting()))
        return SettleRequest(self.owned.queue, self.owned.lease, settlements, release)

    def restore(self, request: SettleRequest) -> None:
        """Take back what :meth:`to_settle` returned and could not be settled.

        Its failures were counted beside the settle: a later try would count them again.
        """
        self._settlements = [each._replace(failure=None) for each in request.settlements]

    def take_unstarted(self, now: float) -> SettleRequest | None:
        """Remove the batches that have waited too long at ``now`` (monotonic), to be returned."""
        if now < self.claimed_at + MAX_WAIT_BEHIND_RUN:
            return None
        jobs = self._take_waiting()
        return SettleRequest(self.owned.queue, self.owned.lease, self._returned(jobs)) if jobs else None

    def add_settlements(self, settlements: Sequence[Settlement]) -> None:
        """Record settlements that came later than their batch, or that could not be settled alone."""
        self._settlements += settlements

    def _take_waiting(self) -> list[Job]:
        jobs: list[Job] = []
        with contextlib.suppress(IndexError):
            while True:
                jobs += self._waiting.popleft()
        return jobs

    def _returned(self, jobs: Sequence[Job]) -> tuple[Settlement, ...]:
        return tuple(Settlement(job.id, job.claim, Disposition.RETURN) for job in jobs)


# Claims from one shard, runs the batches, and settles them with the next claim.

#: Seconds until a lane tries a shard again whose master of a cluster is away.
PARKED = 0.5
#: Seconds until a lane tries a shard again in which only suspects are due, while another lane runs one.
SUSPECT_DELAY = 0.2


class ClaimCycle:
    """Claims batches of a shard, runs them, and settles them with the next claim.

    It belongs to the thread of its lane; only :meth:`return_unstarted` is called from another one.
    """

    def __init__(self, state: LaneState, ctx: WorkerContext) -> None:
        #: The running batch.
        self.batch: Batch | None = None
        #: Of the runs of each queue, in s (see ClaimWindow); and the seconds of all runs together.
        self.mean_durations: dict[str, float] = {}
        self.seconds_run: float = 0.0
        self._state = state
        self._ctx = ctx
        #: The claim that is not settled yet.
        self._window: ClaimWindow | None = None
        #: Claims that could not be settled, by shard: their masters are away, or Redis denies the right.
        #: Replaced as a whole, since other threads read it.
        self._aside: dict[ShardRef, ClaimWindow] = {}
        #: Monotonic time at which they are tried again.
        self._try_aside_at = 0.0

    @property
    def unsettled(self) -> ShardRef | None:
        """The shard of a claim that is not settled yet."""
        window = self._window
        return None if window is None else window.owned.shard

    @property
    def aside(self) -> KeysView[ShardRef]:
        """The shards of claims that could not be settled yet: their masters are away, or deny the right."""
        return self._aside.keys()

    def run_next(self, owned: OwnedShard) -> None:
        """Claim from a shard, and run the batches; the next claim settles them."""
        queue = owned.queue
        if owned.shard in self._aside:
            if self._window is not None:
                self.settle()
            self._window = self._take_aside(owned.shard)
            self.settle()
            if owned.shard in self._aside:
                return
        wanted = batches_to_claim(self.mean_durations.get(queue.name), self._ctx.window)
        surplus = 0
        try:
            tokens = self._tokens(queue.name, wanted=wanted)
            surplus = batches = wanted if tokens is None else tokens.granted
            if batches:
                surplus = self._claim_and_run(owned, batches)
        except StoreError as error:
            if owned.shard not in self._aside:
                self._on_store_error(owned, error)
        self._return_tokens(queue.name, surplus)

    def settle_aside(self, at_once: bool = False) -> None:
        """Try again to settle what is aside, not more often than each PARKED s unless ``at_once``.

        Gives up when the lane does.
        """
        now = self._ctx.clock.monotonic()
        if not self._aside or (now < self._try_aside_at and not at_once):
            return
        self._try_aside_at = now + PARKED
        if self._window is not None:
            self.settle()
        for shard in self._aside:
            self._window = self._take_aside(shard)
            self.settle()
        if self._aside and self._state.gives_up():
            for shard, window in self._aside.items():
                self._take_aside(shard)
                self._on_store_error(window.owned, StoreUnavailable("what ran is not settled"))

    def _take_aside(self, shard: ShardRef) -> ClaimWindow:
        window = self._aside[shard]
        self._aside = {other: each for other, each in self._aside.items() if other != shard}
        return window

    def settle(self) -> None:
        """Settle what has run, without another claim."""
        try:
            self._settle_and_claim(None)
        except StoreError as error:
            window, self._window = self._window, None
            if window is not None:
                self._on_settled(window, error)

    def settle_after_crash(self) -> None:
        """Settle all batches of a crashed lane but the running one: only that counts as crashed.

        End at the first server that is away: the worker stops only after this.
        """
        if self.batch is None:
            return
        windows = list(self._aside.values())
        if self._window is not None:
            self._window.add_settlements(self._ctx.runner.flush())
            windows.insert(0, self._window)
        for window in windows:
            error = self._try_settle(window.to_settle())
            if error is not None:
                shard = window.owned.shard
                logger.error("%s could not settle what ran of %s before: %s", self._state.name, shard, error)
            if isinstance(error, StoreUnavailable):
                break

    def return_unstarted(self, now: float) -> None:
        """Return batches that have waited too long behind a running one; ``now`` is monotonic."""
        window = self._window
        returned = window.take_unstarted(now) if window is not None else None
        if window is not None and returned is not None and self._try_settle(returned) is not None:
            # The lane's own settle meets the error, and handles it.
            window.add_settlements(returned.settlements)

    def _try_settle(self, to_settle: SettleRequest) -> StoreError | None:
        try:
            answer, _ = self._ctx.store.exchange(to_settle, None)
        except StoreError as error:
            return error
        return answer if isinstance(answer, StoreError) else None

    def _on_store_error(self, owned: OwnedShard, error: StoreError) -> None:
        if isinstance(error, NotOwner):
            self._state.drop(owned.shard)
            self._ctx.mailbox.report_gone(owned)
            self._retract_crashes(owned)
        elif isinstance(error, StoreUnavailable) and not self._state.gives_up():
            self._state.defer(owned.shard, PARKED)
        elif isinstance(error, StoreUnavailable):
            logger.error("stopping: jobs of %s that were claimed will be recovered: %s", owned.shard, error)
        else:
            self._ctx.meter.refused()
            # The text of a damage needs no traceback.
            cause = None if isinstance(error, ShardDamaged) else error
            logger.error(
                "shard %s is skipped for %.0f s: %s", owned.shard, FAILED_SHARD_DELAY, error, exc_info=cause
            )
            self._state.defer(owned.shard, FAILED_SHARD_DELAY)

    def _retract_crashes(self, owned: OwnedShard) -> None:
        # The new owner has counted a crash of this node, which is alive.
        try:
            self._ctx.store.retract_crashes(owned.lease)
        except StoreError as error:
            logger.warning("crashes that were counted for %s could not be undone: %s", owned.shard, error)

    def _tokens(self, queue: str, *, wanted: int = 0, surplus: int = 0) -> Tokens | None:
        """Take or return tokens; None for a queue without a rate limit. Raises StoreUnavailable."""
        limiter = self._ctx.rate_limiter
        request = limiter.request(queue, self._state.name, wanted=wanted, surplus=surplus)
        if request is None:
            return None
        tokens = self._state.request([], lambda: self._ctx.store.tokens(request))
        if isinstance(tokens, StoreUnavailable):
            limiter.park(queue, PARKED)
            raise tokens
        limiter.record(queue, tokens)
        return tokens

    def _return_tokens(self, queue: str, surplus: int) -> None:
        if not surplus:
            return
        try:
            self._tokens(queue, surplus=surplus)
        except StoreError as error:
            logger.warning("%d tokens of queue %s could not be returned: %s", surplus, queue, error)

    def _claim_and_run(self, owned: OwnedShard, batches: int) -> int:
        """Claim and run. Return how many claimed batches did not start: their tokens go back.

        A node runs one suspect at a time, so that a crash has one cause.
        """
        lock = self._ctx.suspect_lock
        locked = lock.acquire(blocking=False)
        try:
            # The claim that is settled in the same round trip is listed as open, too: if only its settle
            # fails, its jobs must not go back and run twice.
            number, open_claims = owned.next_request(), owned.open_claims
            claim = self._settle_and_claim(
                ClaimRequest(owned.queue, owned.lease, number, open_claims, locked, batches)
            )
            assert claim is not None
            if locked and not claim.suspect:
                lock.release()
                locked = False
            if claim.suspect_due:
                self._state.defer(owned.shard, SUSPECT_DELAY)
            claimed = run_count(len(claim.jobs), owned.queue.batch_size)
            # Returned before the run, since other lanes can use them meanwhile.
            self._return_tokens(owned.queue.name, batches - claimed)
            started = self._run(owned, claim)
            if locked:
                self.settle()
            return claimed - started
        finally:
            if locked:
                lock.release()

    def _settle_and_claim(self, to_claim: ClaimRequest | None) -> Claim | None:
        """Settle what has run, release its shard if it is leaving, and claim, in one round trip.

        Raises the error of the claim.
        """
        window = self._window
        to_settle = self._settle_request(window) if window is not None else None
        shards = [request.lease.shard for request in (to_settle, to_claim) if request is not None]
        store = self._ctx.store
        settled, claim = self._state.request(shards, lambda: store.exchange(to_settle, to_claim))
        if window is not None:
            self._window = None
            assert settled is not None
            assert to_settle is not None
            if isinstance(settled, SENT_AGAIN):
                window.restore(to_settle)
                self._set_aside(window, settled)
                if to_claim is not None and to_claim.lease.shard == window.owned.shard:
                    # What was claimed nevertheless goes back with the next claim: a second window of the
                    # shard would take the place of this one.
                    raise settled
            else:
                self._on_settled(window, settled)
        if isinstance(claim, StoreError):
            raise claim
        if claim is not None and to_claim is not None:
            self._state.record(to_claim.lease.shard, Due(claim.next_due, claim.now))
        return claim

    def _set_aside(self, window: ClaimWindow, error: StoreError) -> None:
        now = self._ctx.clock.monotonic()
        if not self._aside:
            self._try_aside_at = now + PARKED
        shard = window.owned.shard
        self._aside = {**self._aside, shard: window}
        self._state.defer(shard, PARKED)
        # What a master of a cluster denies is logged for all its shards.
        if not isinstance(error, StoreUnavailable):
            self._ctx.meter.refused()
            if window.denied_at is None:
                window.denied_at = now
                logger.error("what ran of shard %s is not settled until Redis permits it: %s", shard, error)

    def _settle_request(self, window: ClaimWindow) -> SettleRequest:
        """Return the request that settles what has run, and releases the shard if it is leaving."""
        window.add_settlements(self._ctx.runner.flush())
        owned = window.owned
        owned.release_sent = owned.leaving
        owned.may_be_released |= owned.leaving
        return window.to_settle(owned.release_sent)

    def _on_settled(self, window: ClaimWindow, settled: SettleReply | StoreError) -> None:
        owned = window.owned
        owned.close_claim(window.number)
        if window.denied_at is not None and not isinstance(settled, StoreError):
            seconds = self._ctx.clock.monotonic() - window.denied_at
            logger.warning("what ran of shard %s is settled after %.1f s", owned.shard, seconds)
        if isinstance(settled, StoreError):
            self._on_store_error(owned, settled)
        else:
            if settled.released:
                self._ctx.mailbox.report_gone(owned)
            self._state.record(owned.shard, Due(settled.next_due, settled.now))
            for batch in window.ran:
                self._ctx.runner.settled(batch, settled.accepted)
        if not self._state.serves(owned):
            self._ctx.mailbox.wake()

    def _count_unverified(self, queue: str, settlement: Settlement) -> None:
        count = sum(removal.unverified for removal in settlement.bad)
        if count:
            self._ctx.meter.unverified(queue, count)

    def _run(self, owned: OwnedShard, claim: Claim) -> int:
        """Run the batches of a claim while they may start; return how many ran."""
        if not claim.jobs:
            return 0
        owned.open_claim(claim.number)
        ctx, pid, name = self._ctx, os.getpid(), owned.queue.name
        now = ctx.clock.monotonic()
        window = self._window = ClaimWindow(owned, claim, now)
        mean = self.mean_durations.get(name)
        # The answer of a claim may come late: after an outage another node may be about to take the shard.
        while self._state.may_start(owned, now) and (batch := window.next(now)) is not None:
            self.batch = batch
            ctx.exclusion.begin(owned)
            try:
                settlements = staying(pid, ctx.runner.run, batch)
            finally:
                ctx.exclusion.end(owned)
            if self._state.stopping:
                # What stops the worker may have ended the child process of the run, too.
                settlements = tuple([settlement.without_crash() for settlement in settlements])
            window.add(batch, settlements)
            for settlement in settlements:
                if settlement.bad:
                    self._count_unverified(name, settlement)
            self.batch = None
            began_at, now = now, ctx.clock.monotonic()
            mean = self.mean_durations[name] = mean_duration(mean, now - began_at)
            self.seconds_run += now - began_at
            ctx.meter.ran(batch, claim.now + began_at - window.claimed_at, now - began_at)
        return len(window.ran)


# A worker thread with shards pinned to it: pick a shard, claim, run, settle.


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
