"""What a process that a run forks may do: nothing of the worker. What the worker holds is the parent's."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from .context import CRASHED

T = TypeVar("T")

logger = logging.getLogger("celery_lowkiq.worker")

#: How long a forked process may take to log why it ends, in s: a lock may be held by a thread that it lacks.
LAST_LINE = 5


def staying(pid: int, function: Callable[[], T]) -> T:
    """What the function returns or raises in process ``pid``, where it was called. A fork of that process in
    which it returns, or leaves by an error, ends at once.
    """
    try:
        return function()
    finally:
        if os.getpid() != pid:
            _leave(pid)


def _leave(parent: int) -> NoReturn:
    """End without ``atexit``, finalizers or buffers, all of which are copies of the parent's."""
    try:
        _end_soon()
        logger.critical(
            "%s: a run that began in process %d came back in process %d, which its function forked: that "
            "process ends, and the run goes on in the first. End a forked process with os._exit(), or use "
            "multiprocessing or subprocess",
            threading.current_thread().name,
            parent,
            os.getpid(),
        )
    finally:
        os._exit(CRASHED)


def _end_soon() -> None:
    """Have the kernel end this process, also if the log blocks."""
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LAST_LINE)


class ProcessLock:
    """A lock between the threads of a process. A forked process begins with a free one."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
