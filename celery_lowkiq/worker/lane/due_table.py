"""What a lane knows about its shards: when each has work next, by Redis's clock."""

from __future__ import annotations

from celery_lowkiq.rules.claims import Due
from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.models import ShardRef


class Agenda:
    """Due times by shard. Not locked: the lane guards it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[ShardRef, float] = {}
        #: What was announced since the last question about a shard was sent.
        self._heard: dict[ShardRef, float] = {}
        #: The last question about a shard: an answer to an earlier one is older than what is known.
        self._asked: dict[ShardRef, int] = {}
        self._questions = 0
        self._offset: float | None = None

    def now(self) -> float:
        """Redis's clock (Unix s), as far as the last reply tells; before any, the beginning of time."""
        return 0.0 if self._offset is None else self._clock.monotonic() + self._offset

    def ask(self, shard: ShardRef) -> int:
        """A question about a shard is about to be sent: its reply will know all that was heard so far.

        Returns the question's number.
        """
        self._heard.pop(shard, None)
        self._questions += 1
        self._asked[shard] = self._questions
        return self._questions

    def learn(self, shard: ShardRef, due: Due, question: int | None = None) -> None:
        """A reply of the store about a shard: the truth when it was sent. What was heard since then stays,
        for pushes after an announced one are silent. The reply to a ``question`` that was not the last is
        of no use.
        """
        if question not in (None, self._asked.get(shard)):
            return
        self._offset = due.now - self._clock.monotonic()
        self._due.pop(shard, None)
        for known in (due.next_due, self._heard.pop(shard, None)):
            if known is not None:
                self._due[shard] = min(known, self._due.get(shard, known))

    def hear(self, shard: ShardRef, perform_in: float) -> None:
        """An announcement: a shard has work at this time, or earlier if that was known."""
        for known in (self._due, self._heard):
            known[shard] = min(perform_in, known.get(shard, perform_in))

    def park(self, shard: ShardRef, seconds: float) -> None:
        """Leave a shard alone for a while."""
        self._due[shard] = self.now() + seconds

    def forget(self, shard: ShardRef) -> None:
        """The shard is not the lane's any more."""
        for known in (self._due, self._heard, self._asked):
            known.pop(shard, None)

    def due(self) -> dict[ShardRef, float]:
        """Due times by shard, without those that have nothing."""
        return dict(self._due)

    def seconds_until(self, perform_in: float | None) -> float | None:
        """How long until a due time."""
        return None if perform_in is None else max(0.0, perform_in - self.now())
