"""How far a change in many steps is, and how it is stopped between two of them."""

from __future__ import annotations

from collections.abc import Callable

#: Called after each step with how many jobs (or ids) are done so far. It may raise Stop.
Progress = Callable[[int], None]


class Stop(Exception):
    """No further step is to begin; what was done stays done. Who asks in the last step asks too late."""


class Tally:
    """Counts what the steps of a change have done, and tells it."""

    def __init__(self, progress: Progress | None) -> None:
        self.count = 0
        self._progress = progress
        self._stop: Stop | None = None

    def begin(self) -> None:
        """Before each step. Raises Stop."""
        if self._stop is not None:
            raise self._stop

    def add(self, count: int) -> None:
        """After each step, also when it has only done a part of one job."""
        self.count += count
        if self._progress:
            try:
                self._progress(self.count)
            except Stop as stop:
                self._stop = stop
