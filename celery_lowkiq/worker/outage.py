"""Living through a Redis that is away: said once when it begins, once when it ends, however many threads
notice it, and however often connections break.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable

from .ports import Meter
from .unmeasured import UNMEASURED

logger = logging.getLogger("celery_lowkiq.worker")

T = TypeVar("T")

#: Of the longest depends how soon a node goes on after a long outage, in s.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
#: Outages that begin within so many s after one that was logged are one storm with it: only one that
#: still lasts then has lines of its own.
STORM = 10.0


def pauses(jitter: Callable[[], float] = random.random, longest: float = LONGEST_PAUSE) -> Iterator[float]:
    """Seconds between attempts: doubling, and spread so that nodes do not come back in step."""
    pause = FIRST_PAUSE
    while True:
        yield pause * (0.5 + jitter() / 2)
        pause = min(2 * pause, longest)


class Outage:
    """What the threads of a node know together about Redis being away."""

    def __init__(self, clock: Clock, meter: Meter = UNMEASURED) -> None:
        self._clock = clock
        self._meter = meter
        self._lock = threading.Lock()
        self._since: float | None = None
        #: Threads that have had no answer since: one that fares well does not speak for the others.
        self._without: set[int] = set()
        #: When each thread asked last, and when the last outage ended (monotonic time).
        self._asked_at: dict[int, float] = {}
        self._ended_at = -math.inf
        #: When a beginning was logged last, whether it was this outage's, and how many were not since.
        self._logged_at = -math.inf
        self._logged = False
        self._unlogged = 0
        #: Ends all pauses.
        self.stop = threading.Event()

    def asks(self) -> None:
        """This thread is about to ask Redis something."""
        self._asked_at[threading.get_ident()] = self._clock.monotonic()

    def begins(self, error: StoreError) -> None:
        """Redis did not answer, or refused what a node cannot do without. A question from before the end of
        an outage belongs to that one: only what is asked since then tells of another.
        """
        self._meter.refused()
        me, now = threading.get_ident(), self._clock.monotonic()
        with self._lock:
            if self._asked_at.get(me, math.inf) < self._ended_at:
                return
            self._without.add(me)
            first, since = self._since is None, now if self._since is None else self._since
            self._since = since
            lines, unlogged = not self._logged and now - self._logged_at >= STORM, self._unlogged
            if lines:
                self._logged_at, self._logged, self._unlogged = now, True, 0
        if first:
            self._meter.outage()
        if lines:
            # Redis ends some of its texts with a full stop, others not.
            text = str(error).rstrip(".") + _times(unlogged, now - since)
            logger.error("%s. Ordered queues wait until %s.", text, error.until)

    def ends(self) -> None:
        """Redis answered this thread; it is back when it has answered all that failed."""
        if self._since is None:
            return
        with self._lock:
            self._without.discard(threading.get_ident())
            if self._without or self._since is None:
                return
            now = self._ended_at = self._clock.monotonic()
            seconds, self._since = now - self._since, None
            logged, self._logged = self._logged, False
            self._unlogged += not logged
        if logged:
            logger.warning("Redis is back after %.1f s. Ordered queues go on.", seconds)

    def survive(self, action: Callable[[], T], give_up: Callable[[], bool]) -> T:
        """Repeat the action until Redis answers. Raises StoreUnavailable when ``give_up()``."""
        for pause in pauses():
            self.asks()
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


def _times(unlogged: int, seconds: float) -> str:
    """What is not in the log of a storm: shorter outages, and how long this one has lasted."""
    words = [f"{unlogged} shorter outages since the last line"] if unlogged else []
    words += [f"away for {seconds:.1f} s so far"] if seconds >= 0.05 else []
    return f" ({', '.join(words)})" if words else ""
