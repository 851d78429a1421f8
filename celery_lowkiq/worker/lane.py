"""Lanes: threads that work shards, one batch at a time."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias

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
    run_count,
)
from celery_lowkiq.rules.errors import NotOwner, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Batch, Disposition, Job, PayloadRemoval, Settlement, ShardRef
from celery_lowkiq.rules.policies import Tokens
from celery_lowkiq.worker.context import WorkerContext
from celery_lowkiq.worker.forks import end_forks_by_signal, staying
from celery_lowkiq.worker.owned_shard import OwnedShard
from celery_lowkiq.worker.ports import EXIT_CRASHED

# Due times of the next jobs of a lane's shards, on the clocks of their masters.

#: Seconds by which a clock may drift from the monotonic one between two replies.
DRIFT = 0.05


class DueTable:
    """Due times by shard, from replies of the store and announcements of pushes. Not locked.

    The masters of a cluster have clocks of their own. Redis's clock is the clock of one master here, to
    which the due times in shards of other masters are converted.
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
        """Return the clock (Unix s) of Redis, or of a shard's master; 0 before the first reply."""
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
        """Tell whether the last query showed no job, and nothing was announced, claimed or settled since."""
        return self._empty.get(shard) is open_claims and shard not in self._due

    def doubt(self) -> None:
        """Forget which shards were empty, and ignore replies on their way: Redis may be another one."""
        self._empty.clear()
        self._last_query.clear()

    def record(
        self,
        shard: ShardRef,
        due: Due | Claim | SettleReply,
        query: int | None = None,
        open_claims: OpenClaims | None = None,
    ) -> None:
        """Record a reply of the store, to a ``query`` that named these ``open_claims``.

        Announcements since the query was sent stay, also for the second reply of a settle with a claim: the
        pushes that follow an announced push are not announced. Replies to earlier queries are ignored.
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
            # The clock was set, or the shard has another master: replies of other shards show clocks anew.
            self._ahead.clear()
        self._ahead.pop(shard, None)
        self._offset, self._shown_by = (least, most), shard

    def announce(self, shard: ShardRef, perform_in: float) -> None:
        """Record an announced push: the shard has a job at this time or earlier."""
        for times in (self._due, self._announced):
            times[shard] = min(perform_in, times.get(shard, perform_in))

    def try_soon(self, shard: ShardRef, seconds: float) -> None:
        """Make a shard due now, unless it is due within ``seconds``, as a deferred shard is."""
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

    The lane starts batches and adds settlements; the reaper removes batches that wait for too long.
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
        """Take back the settlements of :meth:`to_settle`, which could not be settled.

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


# A worker thread with shards pinned to it: poll, pick a shard, settle and claim, run.

#: Seconds for which a lane leaves a shard alone after a script failed on it.
FAILED_SHARD_DELAY = 5.0
#: A poll that takes long is followed by a rest of this many times its duration, and of at most this many poll
#: intervals. Announcements still arrive meanwhile.
POLL_REST = 4.0
MAX_POLL_INTERVALS = 10.0

#: Seconds until a lane tries a shard again whose master of a cluster is unreachable.
PARKED = 0.5
#: Seconds until a lane tries a shard again in which only suspects are due, while another lane runs one.
SUSPECT_DELAY = 0.2

#: The answer of a poll about one shard.
PollAnswer: TypeAlias = Due | ShardDamaged | None


class DueQuery(NamedTuple):
    """A request for the due time of one shard; ``number`` matches the answer to it."""

    shard: ShardRef
    open_claims: OpenClaims
    was_empty: bool
    number: int


class Lane:
    """Works its shards one batch at a time until it is stopped.

    One condition guards the lane's shards and their due times; an idle lane waits on it. Ownership changes
    the shards, the waker records pushes, and each lane polls for all idle lanes. The claims belong to the
    lane's thread; the reaper removes only batches that have not started.
    """

    def __init__(self, name: str, ctx: WorkerContext, scheduler: Scheduler, peers: Sequence[Lane]) -> None:
        """``peers``: all lanes of the node, for which one lane polls."""
        self.name = name
        self.crashed: bool = False
        self.ended: bool = False
        #: The running batch.
        self.batch: Batch | None = None
        self._ctx = ctx
        self._peers = peers
        self._picker = ShardPicker(scheduler, name)
        self._changed = threading.Condition()
        self._due = DueTable(ctx.clock)
        self._owned: dict[ShardRef, OwnedShard] = {}
        #: The shard that the lane works now.
        self._picked: ShardRef | None = None
        #: Poll all shards soon; and the shards that were never polled, in order.
        self._refresh = False
        self._unpolled: dict[ShardRef, None] = {}
        self._idle = False
        self._poll_at = ctx.clock.monotonic() + ctx.poll_interval
        self._stopping_at: float | None = None
        #: Mean duration (s) of a run of each queue (see ClaimWindow), and the seconds of all runs together.
        self._mean_durations: dict[str, float] = {}
        self._seconds_run = 0.0
        #: The claim that is not settled yet.
        self._window: ClaimWindow | None = None
        #: Claims that could not be settled, by shard: their masters are unreachable, or Redis denies the
        #: right. Replaced as a whole, because other threads read it.
        self._aside: dict[ShardRef, ClaimWindow] = {}
        #: Monotonic time at which the claims aside are tried again.
        self._try_aside_at = 0.0
        self.thread: threading.Thread = ctx.thread(name, self._main)

    # -- stopping

    @property
    def stopping(self) -> bool:
        """True when no new batch may start."""
        return self._stopping_at is not None

    def stop_claiming(self) -> None:
        """Start no new batch. Takes no lock, for signal handlers; an idle lane is not woken."""
        self._stopping_at = self._stopping_at or self._ctx.clock.monotonic()

    def stop(self) -> None:
        """Start no new batch, and wake the lane."""
        with self._changed:
            self.stop_claiming()
            self._changed.notify()

    def gives_up(self) -> bool:
        """Stop waiting for Redis one lease time after a stop, and at once after an abandon."""
        stopping_at = self._stopping_at
        if stopping_at is None or self._ctx.outage.stop.is_set():
            return stopping_at is not None
        return self._ctx.clock.monotonic() - stopping_at > self._ctx.lease_seconds

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

    def shards(self) -> list[ShardRef]:
        """Return the shards, sorted."""
        with self._changed:
            return sorted(self._owned, key=attrgetter("queue", "index"))

    @property
    def load(self) -> int:
        """Number of shards."""
        return len(self._owned)

    @property
    def working(self) -> frozenset[ShardRef]:
        """Shards that the lane claims from, runs or settles now; a crashed lane keeps them."""
        picked, window = self._picked, self._window
        unsettled = None if window is None else window.owned.shard
        return frozenset(shard for shard in (picked, unsettled, *self._aside) if shard is not None)

    # -- reports

    def mean_run(self, queue: str) -> float | None:
        """Return how long (s) the runs of a queue take here; None before the first has ended."""
        return self._mean_durations.get(queue)

    def seconds_run(self, now: float) -> float:
        """Return how many seconds of runs the lane had until ``now`` (monotonic)."""
        batch = self.batch
        return self._seconds_run + (0.0 if batch is None else max(0.0, now - batch.began_at))

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

    def _record(self, shard: ShardRef, reply: Claim | SettleReply) -> None:
        with self._changed:
            if shard in self._owned:
                self._due.record(shard, reply)

    def _defer(self, shard: ShardRef, seconds: float) -> None:
        with self._changed:
            self._due.defer(shard, seconds)

    def _claimable(self) -> dict[ShardRef, float]:
        """Return due times of shards whose lease allows a claim, delayed until their queue has a token."""
        now = self._ctx.clock.monotonic()
        due = self._due.due()
        found = {
            shard: due[shard] for shard, owned in self._owned.items() if shard in due and owned.may_claim(now)
        }
        until = self._ctx.rate_limiter.exhausted_until(now)
        ahead = self._due.now() - now
        found |= {s: max(when, until[s.queue] + ahead) for s, when in found.items() if s.queue in until}
        return found

    # -- polling

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
            queries = []
            for shard in shards:
                open_claims = self._owned[shard].open_claims
                was_empty = self._due.was_empty(shard, open_claims)
                queries.append(DueQuery(shard, open_claims, was_empty, self._due.begin_query(shard)))
            return queries

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

    # -- the thread: poll, pick a shard, settle and claim, run

    def _main(self) -> None:
        end_forks_by_signal()
        try:
            while not self.stopping or self._window is not None or self._aside:
                owned = None if self.stopping else self._next()
                if owned is not None:
                    self._work(owned)
                elif self._window is not None:
                    self._settle()
                elif self.stopping:
                    self._ctx.outage.stop.wait(PARKED)
                    self._settle_aside(at_once=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, a lane never ends silently
            self._crash(error)
        finally:
            self.ended = True
            self._ctx.mailbox.wake()

    def _next(self) -> OwnedShard | None:
        """Pick the shard to work now.

        Without one, wait for the next reason to look, unless a claim is to be settled, and return None.
        """
        self._poll()
        # A lane that always has something to run tries, too: the next owner of a shard may wait for it.
        self._settle_aside()
        with self._changed:
            due, now = self._claimable(), self._due.now()
            shard = self._picker.pick(due, now)
            if shard is not None:
                self._picked = shard
                return self._owned[shard]
            if self._window is None and not (self._refresh or self._unpolled or self.stopping):
                # A due shard that was not picked is offered again at the next poll or wake-up.
                seconds = max(0.0, self._poll_at - self._ctx.clock.monotonic())
                if self._aside:
                    seconds = min(seconds, PARKED)
                self._idle = True
                coming = [when for when in due.values() if when > now]
                if coming:
                    seconds = min(seconds, max(0.0, min(coming) - self._due.now()))
                self._changed.wait(seconds)
                self._idle = False
            return None

    def _poll(self) -> None:
        """Read the due times of this lane and of all idle lanes in one round trip, when it is time to.

        A busy lane polls, too: a backlog in one shard must not hide another shard whose announcement was
        lost. New shards are polled at once, and alone.
        """
        now = self._ctx.clock.monotonic()
        with self._changed:
            everything = self._refresh or now >= self._poll_at
            if not (everything or self._unpolled):
                return
        asked = [(lane, lane.begin_poll(everything, lane is self)) for lane in self._peers]
        queries = [query for _, several in asked for query in several]
        if not queries:
            return
        try:
            dues, seconds = self._ctx.outage.retry(self.gives_up, self._read_due, queries)
        except StoreUnavailable:
            return
        except StoreError as error:
            logger.error("%s tries its shards one by one: %s", self.name, error, exc_info=error)
            for lane, _ in asked:
                lane.try_all()
            return
        if None in dues:
            # The time spent on an unreachable master says nothing about the load of the other masters.
            seconds = 0.0
        answers = zip(queries, dues, strict=True)
        for lane, several in asked:
            lane.end_poll(list(islice(answers, len(several))), seconds)

    def _read_due(self, queries: Sequence[DueQuery]) -> tuple[Sequence[PollAnswer], float]:
        """Return the due times, and how many seconds it took to read them."""
        clock, sent_at = self._ctx.clock, self._ctx.clock.monotonic()
        dues = self._ctx.store.next_due(
            [query.shard for query in queries],
            [query.open_claims for query in queries],
            [query.was_empty for query in queries],
        )
        return dues, clock.monotonic() - sent_at

    def _work(self, owned: OwnedShard) -> None:
        """Claim from a shard, and run the batches; the next claim settles them."""
        self.thread.name = f"{self.name} {owned.shard}"
        try:
            if owned.shard in self._aside:
                self._settle_again(owned.shard)
            if owned.shard not in self._aside:
                self._claim_within_rate(owned)
        finally:
            self._picked = None
            self.thread.name = self.name

    def _claim_within_rate(self, owned: OwnedShard) -> None:
        queue = owned.queue.name
        wanted = batches_to_claim(self._mean_durations.get(queue), self._ctx.window)
        surplus = 0
        try:
            tokens = self._tokens(queue, wanted=wanted)
            surplus = batches = wanted if tokens is None else tokens.granted
            if batches:
                surplus = self._claim_and_run(owned, batches)
        except StoreError as error:
            if owned.shard not in self._aside:
                self._on_store_error(owned, error)
        self._return_tokens(queue, surplus)

    def _tokens(self, queue: str, *, wanted: int = 0, surplus: int = 0) -> Tokens | None:
        """Take or return tokens; None for a queue without a rate limit. Raises StoreUnavailable."""
        limiter = self._ctx.rate_limiter
        request = limiter.request(queue, self.name, wanted=wanted, surplus=surplus)
        if request is None:
            return None
        tokens = self._ctx.outage.retry(self.gives_up, self._ctx.store.tokens, request)
        if isinstance(tokens, StoreError):
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
            owned.request += 1
            claim = self._settle_and_claim(
                ClaimRequest(owned.queue, owned.lease, owned.request, owned.open_claims, locked, batches)
            )
            assert claim is not None
            if locked and not claim.suspect:
                lock.release()
                locked = False
            if claim.suspect_due:
                self._defer(owned.shard, SUSPECT_DELAY)
            claimed = run_count(len(claim.jobs), owned.queue.batch_size)
            # Returned before the run, because other lanes can use the tokens meanwhile.
            self._return_tokens(owned.queue.name, batches - claimed)
            started = self._run(owned, claim) if claim.jobs else 0
            if locked:
                self._settle()
            return claimed - started
        finally:
            if locked:
                lock.release()

    def _run(self, owned: OwnedShard, claim: Claim) -> int:
        """Run the batches of a claim while they may start; return how many ran."""
        owned.open_claim(claim.number)
        ctx, pid, name = self._ctx, os.getpid(), owned.queue.name
        now = ctx.clock.monotonic()
        window = self._window = ClaimWindow(owned, claim, now)
        mean = self._mean_durations.get(name)
        while self._may_start(owned, now) and (batch := window.next(now)) is not None:
            self.batch = batch
            ctx.exclusion.begin(owned)
            try:
                settlements = staying(pid, ctx.runner.run, batch)
            finally:
                ctx.exclusion.end(owned)
            if self._stopping_at is not None:
                # The stop of the worker may have ended the child process of the run, too.
                settlements = tuple([settlement.without_crash() for settlement in settlements])
            window.add(batch, settlements)
            for settlement in settlements:
                if settlement.bad:
                    self._count_unverified(name, settlement.bad)
            self.batch = None
            began_at, now = now, ctx.clock.monotonic()
            mean = self._mean_durations[name] = mean_duration(mean, now - began_at)
            self._seconds_run += now - began_at
            ctx.meter.ran(batch, claim.now + began_at - window.claimed_at, now - began_at)
        return len(window.ran)

    def _count_unverified(self, queue: str, removals: Sequence[PayloadRemoval]) -> None:
        count = sum(removal.unverified for removal in removals)
        if count:
            self._ctx.meter.unverified(queue, count)

    def _may_start(self, owned: OwnedShard, now: float) -> bool:
        """Tell whether a claimed batch may start ``now`` (monotonic).

        The answer of a claim may come late: after an outage another node may be about to take the shard.
        """
        served = self._owned.get(owned.lease.shard) is owned
        return served and self._stopping_at is None and owned.may_claim(now)

    # -- settling

    def _settle_and_claim(self, to_claim: ClaimRequest | None) -> Claim | None:
        """Settle what has run, release its shard if it is leaving, and claim, in one round trip.

        Raises the error of the claim.
        """
        window = self._window
        to_settle = self._settle_request(window) if window is not None else None
        with self._changed:
            for request in (to_settle, to_claim):
                if request is not None:
                    self._due.begin_change(request.lease.shard)
        settled, claim = self._ctx.outage.retry(self.gives_up, self._ctx.store.exchange, to_settle, to_claim)
        if window is not None:
            self._window = None
            assert settled is not None
            assert to_settle is not None
            if isinstance(settled, SENT_AGAIN):
                window.restore(to_settle)
                self._set_aside(window, settled)
                if to_claim is not None and to_claim.lease.shard == window.owned.shard:
                    # Jobs that were claimed nevertheless go back with the next claim: a second window of the
                    # shard would take the place of this one.
                    raise settled
            else:
                self._on_settled(window, settled)
        if isinstance(claim, StoreError):
            raise claim
        if claim is not None and to_claim is not None:
            self._record(to_claim.lease.shard, claim)
        return claim

    def _settle_request(self, window: ClaimWindow) -> SettleRequest:
        """Return the request that settles what has run, and releases the shard if it is leaving."""
        window.add_settlements(self._ctx.runner.flush())
        owned = window.owned
        owned.release_sent = owned.leaving
        owned.may_be_released |= owned.leaving
        return window.to_settle(owned.release_sent)

    def _settle(self) -> None:
        """Settle what has run, without another claim."""
        try:
            self._settle_and_claim(None)
        except StoreError as error:
            window, self._window = self._window, None
            if window is not None:
                self._on_settled(window, error)

    def _on_settled(self, window: ClaimWindow, settled: SettleReply | StoreError) -> None:
        owned = window.owned
        owned.close_claim(window.number)
        if isinstance(settled, StoreError):
            self._on_store_error(owned, settled)
        else:
            if window.denied_at is not None:
                seconds = self._ctx.clock.monotonic() - window.denied_at
                logger.warning("what ran of shard %s is settled after %.1f s", owned.shard, seconds)
            if settled.released:
                self._ctx.mailbox.report_gone(owned)
            self._record(owned.shard, settled)
            for batch in window.ran:
                self._ctx.runner.settled(batch, settled.accepted)
        if self._owned.get(owned.shard) is not owned:
            self._ctx.mailbox.wake()

    def _on_store_error(self, owned: OwnedShard, error: StoreError) -> None:
        if isinstance(error, NotOwner):
            self.drop(owned.shard)
            self._ctx.mailbox.report_gone(owned)
            try:
                # The new owner has counted a crash of this node, which is alive.
                self._ctx.store.retract_crashes(owned.lease)
            except StoreError as refused:
                text = "crashes that were counted for %s could not be undone: %s"
                logger.warning(text, owned.shard, refused)
        elif isinstance(error, StoreUnavailable) and not self.gives_up():
            self._defer(owned.shard, PARKED)
        elif isinstance(error, StoreUnavailable):
            logger.error("stopping: jobs of %s that were claimed will be recovered: %s", owned.shard, error)
        else:
            self._ctx.meter.refused()
            # The text of a damage needs no traceback.
            cause = None if isinstance(error, ShardDamaged) else error
            logger.error(
                "shard %s is skipped for %.0f s: %s", owned.shard, FAILED_SHARD_DELAY, error, exc_info=cause
            )
            self._defer(owned.shard, FAILED_SHARD_DELAY)

    # -- claims that could not be settled

    def _set_aside(self, window: ClaimWindow, error: StoreError) -> None:
        now = self._ctx.clock.monotonic()
        if not self._aside:
            self._try_aside_at = now + PARKED
        shard = window.owned.shard
        self._aside = {**self._aside, shard: window}
        self._defer(shard, PARKED)
        # A denial by a master of a cluster is logged for all its shards.
        if not isinstance(error, StoreUnavailable):
            self._ctx.meter.refused()
            if window.denied_at is None:
                window.denied_at = now
                logger.error("what ran of shard %s is not settled until Redis permits it: %s", shard, error)

    def _settle_again(self, shard: ShardRef) -> None:
        if self._window is not None:
            self._settle()
        self._window = self._aside[shard]
        self._aside = {other: each for other, each in self._aside.items() if other != shard}
        self._settle()

    def _settle_aside(self, at_once: bool = False) -> None:
        """Try again to settle what is aside, not more often than each PARKED s unless ``at_once``.

        Gives up when the lane does.
        """
        now = self._ctx.clock.monotonic()
        if not self._aside or (now < self._try_aside_at and not at_once):
            return
        self._try_aside_at = now + PARKED
        for shard in self._aside:
            self._settle_again(shard)
        if self._aside and self.gives_up():
            given_up, self._aside = self._aside, {}
            for window in given_up.values():
                self._on_store_error(window.owned, StoreUnavailable("what ran is not settled"))

    # -- other settles: of batches that have not started, and of a crashed lane

    def return_unstarted(self, now: float) -> None:
        """Return batches that have waited too long behind a running one; ``now`` is monotonic.

        Called by the reaper, from another thread.
        """
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

    def _crash(self, error: BaseException) -> None:
        self.crashed = True
        batch = self.batch
        code = error.code if isinstance(error, SystemExit) else EXIT_CRASHED
        exitcode = code if isinstance(code, int) and code else EXIT_CRASHED

        def log() -> None:
            self._settle_after_crash()
            shard = batch and batch.shard
            logger.critical("%s ends with %r on %s: the worker stops", self.name, error, shard)

        self._ctx.stop_worker(self.name, error, exitcode, log)

    def _settle_after_crash(self) -> None:
        """Settle all batches of a crashed lane but the running one: only that one counts as crashed.

        End at the first unreachable server: the worker stops only after this.
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
                logger.error("%s could not settle what ran of %s before: %s", self.name, shard, error)
            if isinstance(error, StoreUnavailable):
                break
