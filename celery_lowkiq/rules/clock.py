"""Time as a value that is passed in."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs the time takes as an argument."""

    def time(self) -> float:
        """Unix time in s; may jump."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""


class SystemClock:
    """The clock of this machine."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
