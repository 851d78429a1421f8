"""Stop signals of the processes that a worker starts: only the worker reacts, and tells them what to do.

Process managers send the signals to all processes at once. A process that reacted by itself would cut the run
that the worker waits for.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Signals by which Celery stops a worker.
STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP") if hasattr(signal, name)
)


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
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
