"""Forks and stop signals of processes that a worker starts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.worker.ports import EXIT_CRASHED

# Stop signals of the processes that a worker starts: only the worker reacts, and sends them messages.
#
# Process managers send the signals to all processes at once. A process that reacted by itself would cut the
# run that the worker waits for.

#: Signals by which Celery stops a worker.
STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP") if hasattr(signal, name)
)

#: Handler of this process, if a worker has started it.
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

    They are neither blocked nor ignored, because the programs that runs start would not get them, either.
    """
    global _handler
    _handler = handler
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    unblock()


def unblock() -> None:
    """Let stop signals reach this process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


# Processes that a run forks: connections, leases and signal handlers belong to the parent process.

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


def at_fork(function: Callable[[], Any]) -> None:
    """Call it in each process that this one forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _reset_stop_signals() -> None:
    """Let stop signals end a fork of a run, and of a process whose own handler waits for an order."""
    is_of_run = getattr(_thread, "resets", False)
    # Forks of this process inherit the handlers that it sets.
    _thread.resets = False
    for number in STOP_SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and (is_of_run or handler == _handler):
            signal.signal(number, signal.SIG_DFL)


at_fork(_reset_stop_signals)

#: Ends of connections to other processes.
_ends: WeakSet[Any] = WeakSet()


def close_in_forks(*ends: Any) -> None:
    """Close them in processes that this one forks: at the other end, they must close with this process."""
    _ends.update(ends)


def _close_ends() -> None:
    for end in list(_ends):
        end.close()
    _ends.clear()


at_fork(_close_ends)


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
        at_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
