"""Time as a value that is passed in."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs the time takes as an argument."""

    def time(self) -> float:
        """Unix time in s; may jump."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back, and goes on while the machine sleeps."""


class SystemClock:
    """The clock of this machine. Where it cannot count sleep (all but Linux), a lease seems longer by it."""

    def time(self) -> float:
        return time.time()

    if hasattr(time, "CLOCK_BOOTTIME"):

        def monotonic(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:

        def monotonic(self) -> float:
            return time.monotonic()
