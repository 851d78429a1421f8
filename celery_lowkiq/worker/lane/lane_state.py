"""What a lane shares with other threads: its shards, their due times, and what it is to do next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypeVar

from celery_lowkiq.rules.claims import Due, OpenClaims
from celery_lowkiq.rules.errors import ShardDamaged
from celery_lowkiq.rules.models import ShardRef

from ..context import WorkerContext
from ..owned_shard import OwnedShard
from .due_table import DueTable

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
