"""How far a node is with taking its shards, for people who wait for it."""

from __future__ import annotations

import logging

from celery_lowkiq.rules.clock import Clock

logger = logging.getLogger("celery_lowkiq.worker")

#: So often it is told, in s; what takes less is not worth a line.
TOLD_EVERY = 5.0


class Progress:
    """Of one span in which there were more shards to take than could be taken at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When the next line is due (monotonic); None: nothing is left to take.
        self._next: float | None = None
        self._told = False
        self._goal = 0

    def begin(self, taken: int, free: int) -> None:
        """A node that has so many shards is about to take those that are free."""
        self._goal = taken + free
        if not free:
            self._next, self._told = None, False
        elif self._next is None:
            self._next = self._clock.monotonic() + TOLD_EVERY

    def tell(self, taken: int) -> None:
        """So many are taken by now."""
        assert self._next is not None
        now, done = self._clock.monotonic(), taken >= self._goal
        if now >= self._next or (done and self._told):
            logger.info("%s of %s shards taken", f"{taken:,}", f"{self._goal:,}")
            self._next, self._told = now + TOLD_EVERY, not done
