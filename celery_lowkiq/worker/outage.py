"""Living through a Redis that is away: said once when it begins, once when it ends."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable

logger = logging.getLogger("celery_lowkiq.worker")

T = TypeVar("T")

#: Of the longest depends how soon a node goes on after a long outage, in s.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


def pauses(jitter: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds between attempts: doubling, and spread so that nodes do not come back in step."""
    pause = FIRST_PAUSE
    while True:
        yield pause * (0.5 + jitter() / 2)
        pause = min(2 * pause, LONGEST_PAUSE)


class Outage:
    """What the threads of a node know together about Redis being away."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        #: Threads that have had no answer since: one that fares well does not speak for the others.
        self._without: set[int] = set()
        #: Ends all pauses.
        self.stop = threading.Event()

    def begins(self, error: StoreError) -> None:
        """Redis did not answer, or refused what a node cannot do without."""
        with self._lock:
            self._without.add(threading.get_ident())
            first, self._since = self._since is None, self._since or self._clock.monotonic()
        if first:
            logger.error("%s. Ordered queues wait until it is back.", error)

    def ends(self) -> None:
        """Redis answered this thread; it is back when it has answered all that failed."""
        if self._since is None:
            return
        with self._lock:
            self._without.discard(threading.get_ident())
            if self._without:
                return
            since, self._since = self._since, None
        if since is not None:
            logger.warning(
                "Redis is back after %.1f s. Ordered queues go on.", self._clock.monotonic() - since
            )

    def survive(self, action: Callable[[], T], give_up: Callable[[], bool]) -> T:
        """Repeat the action until Redis answers. Raises StoreUnavailable when ``give_up()``."""
        for pause in pauses():
            try:
                answer = action()
            except StoreUnavailable as error:
                self.begins(error)
                if give_up():
                    raise
            else:
                self.ends()
                return answer
            self.stop.wait(pause)
        raise AssertionError("pauses() never ends")
