"""SIGINT and SIGTERM, which end a run at once.

Python drops an exception that is raised in a ``__del__`` or in the callback of a weak reference, and with it
a Ctrl-C that comes then: :func:`check` raises it again.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

TERMINATED = 143
_received: list[int] = []


def handle() -> None:
    """Let SIGINT raise ``KeyboardInterrupt``, and SIGTERM ``SystemExit`` with the status that shells give it.

    A shell ignores Ctrl-C for what it starts in the background; a SIGINT that is sent is meant.
    """
    _received.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _receive)


def check() -> None:
    """Raise the exception of the last signal again, if there was one."""
    if _received:
        _raise(_received[-1])


def _receive(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    _raise(number)


def _raise(number: int) -> None:
    if number == signal.SIGTERM:
        sys.exit(TERMINATED)
    raise KeyboardInterrupt
