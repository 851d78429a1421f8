"""Stop signals of the processes that a worker starts: only the worker reacts, and tells them what to do.

Process managers send the signals to all processes at once. A process that reacted by itself would cut the run
that the worker waits for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Signals by which Celery stops a worker.
STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP") if hasattr(signal, name)
)

#: Of this process, if it is one that a worker has started.
_handler: Callable[[int, Any], Any] | None = None


@contextmanager
def blocked() -> Iterator[None]:
    """Start processes that get no stop signal, until they call :func:`handle`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def handle(handler: Callable[[int, Any], Any]) -> None:
    """Handle stop signals from now on.

    They are neither blocked nor ignored, since the programs that runs start would not get them, either.
    """
    global _handler
    _handler = handler
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    unblock()


def unblock() -> None:
    """Let stop signals reach this process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _reset_in_fork() -> None:
    """Let stop signals end what this process forks, in any thread: no order says that it may."""
    for number in STOP_SIGNALS:
        if _handler is not None and signal.getsignal(number) == _handler:
            signal.signal(number, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_fork)
