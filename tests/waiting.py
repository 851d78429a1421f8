"""Waiting for a condition, with a deadline, instead of for a fixed time; how long something waited."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """The first true value of the condition. Fails when there is none within the time."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.01)


class Stopwatch:
    """Measures a block, without the time for which a busy machine does not run a thread that is due.

    For assertions that something waits for no more than one timeout: without waits, it takes milliseconds.
    """

    TICK = 0.01

    def __enter__(self) -> Stopwatch:
        #: Seconds for which the machine was busy with other things.
        self.late = 0.0
        self._ends = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._began = time.monotonic()
        self._ticker.start()
        return self

    def __exit__(self, *error: Any) -> None:
        elapsed = time.monotonic() - self._began
        self._ends.set()
        self._ticker.join()
        #: Seconds without these.
        self.seconds = elapsed - self.late

    def _tick(self) -> None:
        last = self._began
        while not self._ends.wait(self.TICK):
            now = time.monotonic()
            self.late += max(0.0, now - last - self.TICK)
            last = now
