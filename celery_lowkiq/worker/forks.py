"""Processes that a run forks: connections, leases and signal handlers belong to the parent process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from celery_lowkiq.rules.loggers import worker_logger as logger

from .ports import EXIT_CRASHED
from .stop_signals import STOP_SIGNALS

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds that a forked process may take to log why it ends: a thread that it lacks may have locked the log.
LOG_TIMEOUT = 5

_thread = threading.local()


def end_forks_by_signal() -> None:
    """Let a stop signal end each process that this thread forks.

    With the worker's handler, which only asks a worker to stop, the process would live on, and
    ``multiprocessing``'s ``terminate()`` and ``with Pool()`` wait for ever.
    """
    _thread.resets = True


def _reset_stop_signals() -> None:
    if not getattr(_thread, "resets", False):
        return
    # Forks of this process inherit the handlers that it sets.
    _thread.resets = False
    for number in STOP_SIGNALS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_stop_signals)


def staying(pid: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function in process ``pid``. A fork of it ends where the function returns or raises."""
    try:
        return function(*args, **kwargs)
    finally:
        if os.getpid() != pid:
            _leave(pid)


def _leave(parent: int) -> NoReturn:
    """End without ``atexit``, finalizers and buffers: they are copies of the parent's."""
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
        os._exit(EXIT_CRASHED)


def _end_soon() -> None:
    """Let the kernel end this process if the log blocks."""
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LOG_TIMEOUT)


class ProcessLock:
    """A lock between the threads of a process; it is free in a forked process."""

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
