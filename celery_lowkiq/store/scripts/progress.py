"""Progress of a change in many steps, and its cancellation between steps."""

from __future__ import annotations

from collections.abc import Callable

#: Called after each step with the number of jobs (or ids) done so far. It may raise Stop.
Progress = Callable[[int], None]


class Stop(Exception):
    """Raised to prevent further steps; completed steps stay. Ignored once the last step has begun."""


class Tally:
    """Counts the jobs of completed steps and reports the progress."""

    def __init__(self, progress: Progress | None) -> None:
        self.count = 0
        self._progress = progress
        self._stop: Stop | None = None

    def begin(self) -> None:
        """Call before each step. Raises Stop after a request to stop."""
        if self._stop is not None:
            raise self._stop

    def add(self, count: int) -> None:
        """Call after each step, also when it did only a part of a job."""
        self.count += count
        if self._progress:
            try:
                self._progress(self.count)
            except Stop as stop:
                self._stop = stop
