"""Clocks: the protocol that time is read by, and the machine's own clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock and monotonic time, in seconds."""

    def time(self) -> float:
        """Return the Unix time in s; it may jump."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. Never goes back; includes time in suspend."""


class SystemClock:
    """The clock of this machine. Outside Linux it does not count suspend, so leases seem longer after it."""

    def time(self) -> float:
        return time.time()

    if hasattr(time, "CLOCK_BOOTTIME"):

        def monotonic(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:

        def monotonic(self) -> float:
            return time.monotonic()
