"""Retries requests while Redis is unavailable, and logs when an outage starts and when it ends."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from celery_lowkiq.rules.basics import Clock
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.worker.ports import NULL_METER, Meter

P = ParamSpec("P")
T = TypeVar("T")

#: Backoff in s. The maximum bounds how soon a node resumes after a long outage.
FIRST_BACKOFF = 0.05
MAX_BACKOFF = 1.0
#: Outages that start within this many s after a logged one belong to its storm. They are logged only if they
#: outlast it.
STORM = 10.0


def backoff(jitter: Callable[[], float] = random.random, longest: float = MAX_BACKOFF) -> Iterator[float]:
    """Yield seconds between attempts: doubling up to ``longest``, with jitter so that nodes spread."""
    seconds = FIRST_BACKOFF
    while True:
        yield seconds * (0.5 + jitter() / 2)
        seconds = min(2 * seconds, longest)


class OutageTracker:
    """Threads of a node to which Redis does not respond, and the log lines of outages."""

    def __init__(self, clock: Clock, meter: Meter = NULL_METER) -> None:
        self._clock = clock
        self._meter = meter
        self._lock = threading.Lock()
        self._since: float | None = None
        #: Threads without an answer since then. Success in one thread does not mean that others are answered.
        self._failing: set[int] = set()
        #: Monotonic times: the last request of each thread, and the end of the last outage.
        self._requested_at: dict[int, float] = {}
        self._ended_at = -math.inf
        #: When a line was logged last, for what this outage's lines wait, and how many starts went unlogged
        #: since.
        self._logged_at = -math.inf
        self._logged: set[str] = set()
        self._unlogged = 0
        #: Set to end all backoffs.
        self.stop: threading.Event = threading.Event()

    def request_started(self) -> None:
        """Record that this thread sends a request now."""
        self._requested_at[threading.get_ident()] = self._clock.monotonic()

    def failed(self, error: StoreError) -> None:
        """Record that Redis did not answer this thread, or refused a request that the node depends on.

        A request sent before the end of the last outage belongs to that outage and starts no new one. When it
        turns out that somebody must mend user, password or rights, that is logged, too, once an outage.
        """
        self._meter.refused()
        me, now = threading.get_ident(), self._clock.monotonic()
        with self._lock:
            if self._requested_at.get(me, math.inf) < self._ended_at:
                return
            self._failing.add(me)
            first, since = self._since is None, now if self._since is None else self._since
            self._since = since
            if self._logged:
                log = error.until not in self._logged | {StoreError.until}
            else:
                log = now - self._logged_at >= STORM
            unlogged = self._unlogged
            if log:
                self._logged_at, self._unlogged = now, 0
                self._logged.add(error.until)
        if first:
            self._meter.outage()
        if log:
            # Some error texts of Redis end with a full stop.
            text = str(error).rstrip(".") + _storm_text(unlogged, now - since)
            logger.error("%s. Ordered queues wait until %s.", text, error.until)

    def recovered(self) -> None:
        """Record an answer to this thread. The outage ends when all failing threads have been answered."""
        if self._since is None:
            return
        with self._lock:
            self._failing.discard(threading.get_ident())
            if self._failing or self._since is None:
                return
            now = self._ended_at = self._clock.monotonic()
            seconds, self._since = now - self._since, None
            logged, self._logged = bool(self._logged), set()
            self._unlogged += not logged
        if logged:
            logger.warning("Redis is back after %.1f s. Ordered queues go on.", seconds)

    def retry(self, give_up: Callable[[], bool], act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``act`` until Redis responds. Raises StoreUnavailable when ``give_up()``."""
        for seconds in backoff():
            self.request_started()
            try:
                answer = act(*args, **kwargs)
            except StoreUnavailable as error:
                self.failed(error)
                if give_up():
                    raise
            else:
                self.recovered()
                return answer
            self.stop.wait(seconds)
        raise AssertionError("backoff() never ends")


def _storm_text(unlogged: int, seconds: float) -> str:
    words = [f"{unlogged} shorter outages since the last line"] if unlogged else []
    words += [f"unreachable for {seconds:.1f} s so far"] if seconds >= 0.05 else []
    return f" ({', '.join(words)})" if words else ""
