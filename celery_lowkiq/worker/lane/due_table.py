"""When each shard of a lane has its next due job, on the clock of its master."""

from __future__ import annotations

import math

from celery_lowkiq.rules.claims import Due, OpenClaims
from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.models import ShardRef

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
