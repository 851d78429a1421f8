"""Progress: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

WIDTH = 40
LINES = 4


class Progress:
    """Progress of one side towards ``total`` messages."""

    def __init__(self, title: str, total: int, out: TextIO | None = None) -> None:
        self._title = title
        self._total = total
        self._out = out or sys.stderr
        self._bar = self._out.isatty()
        self._printed = -1

    def show(self, done: int) -> None:
        """Show that ``done`` messages are finished."""
        if self._bar:
            filled = WIDTH * done // self._total
            bar = "#" * filled + "." * (WIDTH - filled)
            print(f"\r{self._title:<12} [{bar}] {done:,}/{self._total:,}", end="", file=self._out, flush=True)
        elif (step := LINES * done // self._total) > self._printed:
            self._printed = step
            print(f"{self._title}: {done:,} of {self._total:,} messages", file=self._out, flush=True)

    def close(self) -> None:
        """End the bar's line."""
        if self._bar:
            print(file=self._out, flush=True)
