"""Exclusion: no run outlives the lease of its shard."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import threading
import time
from operator import attrgetter
from typing import Protocol

from celery_lowkiq.rules.basics import Clock
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.worker.owned_shard import OwnedShard

# A Linux kernel timer that ends this process, even while its threads are blocked or it is stopped.

_SIGEV_SIGNAL = 0
_TIMER_ABSTIME = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class _SignalEvent(ctypes.Structure):
    """``struct sigevent``: 64 bytes; only the first three fields are used."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * (64 - ctypes.sizeof(ctypes.c_void_p) - 2 * ctypes.sizeof(ctypes.c_int))),
    )


class KernelTimer:
    """Sends SIGKILL at a time of ``CLOCK_BOOTTIME``, which goes on while the machine sleeps. Not inherited by
    forked processes.
    """

    def __init__(self) -> None:
        """Raises ConfigurationError where the system has no such timer."""
        try:
            self._libc = _library()
            self._clock = time.CLOCK_BOOTTIME
        except (OSError, AttributeError) as error:
            raise _unavailable(error) from error
        self._timer = ctypes.c_void_p()
        event = _SignalEvent(signal=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        if self._libc.timer_create(self._clock, ctypes.byref(event), ctypes.byref(self._timer)) != 0:
            raise _unavailable(os.strerror(ctypes.get_errno()))

    def set(self, at: float | None) -> None:
        """End the process at this time of the clock (s), at once if it has passed; None cancels."""
        # Zero would cancel the timer, so a time before the machine started becomes its first nanosecond.
        nanoseconds = 0 if at is None else max(1, int(at * 1e9))
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(*divmod(nanoseconds, 10**9)))
        if self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timer_settime")


def _library() -> ctypes.CDLL:
    # ``timer_create`` is in libc, or in librt before glibc 2.34.
    libc = ctypes.CDLL(None, use_errno=True)
    library = libc if hasattr(libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)
    library.timer_create.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    library.timer_settime.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return library


def _unavailable(why: object) -> ConfigurationError:
    return ConfigurationError(
        f"lowkiq_exclusion='strict' is invalid: this system has no timer on CLOCK_BOOTTIME ({why}). "
        "Run the worker on Linux, or set lowkiq_exclusion='cooperative'."
    )


# The end of a batch that outlives its lease: it goes on (cooperative), or its process ends (strict).

#: Fraction of the lease time that is left when the line is written, after three failed renewals.
LEFT = 0.15


class Exclusion:
    """Learns from lanes and ownership which batches run, and when their leases run out.

    This one is cooperative: a batch that outlives its lease goes on; its settle is refused when another node
    owns the shard.
    """

    #: True if a batch that runs longer than ``max_run`` loses its lease.
    ends_overdue = False
    #: True if an ending process may release a shard whose batch still runs.
    gives_up_running = True

    def begin(self, owned: OwnedShard) -> None:
        """Record that a batch of the shard is about to run."""

    def end(self, owned: OwnedShard) -> None:
        """Record that the batch has ended."""

    def renewed(self) -> None:
        """Record that leases were renewed."""

    def close(self) -> None:
        """Free resources after the last batch."""


class Timer(Protocol):
    """Ends the process at a given time."""

    def set(self, at: float | None) -> None:
        """End the process at this monotonic time (s); None cancels."""


class Strict(Exclusion):
    """Sets a timer that ends the process at the earliest lease deadline of a running batch."""

    ends_overdue = True
    gives_up_running = False

    def __init__(self, timer: Timer, kill_logger: KillLogger | None = None) -> None:
        """``kill_logger`` logs the reason shortly before the process ends."""
        self._timer = timer
        self._kill_logger = kill_logger
        self._lock = threading.Lock()
        self._running: dict[ShardRef, OwnedShard] = {}

    def begin(self, owned: OwnedShard) -> None:
        with self._lock:
            self._running[owned.shard] = owned
            self._set()

    def end(self, owned: OwnedShard) -> None:
        with self._lock:
            self._running.pop(owned.shard, None)
            self._set()

    def renewed(self) -> None:
        with self._lock:
            if self._running:
                self._set()

    def close(self) -> None:
        if self._kill_logger is not None:
            self._kill_logger.close()

    def _set(self) -> None:
        first = min(self._running.values(), key=attrgetter("deadline"), default=None)
        self._timer.set(None if first is None else first.deadline)
        if self._kill_logger is not None:
            self._kill_logger.expect(first)


class KillLogger:
    """A thread that logs, shortly before strict exclusion ends the process, why: SIGKILL leaves no line.

    It cannot while the process is stopped or its interpreter lock is taken.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._owned: OwnedShard | None = None
        #: Latest monotonic time at which the thread wakes, and whether it has written.
        self._wakes_at = -math.inf
        self._written = False
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="lowkiq-kill-logger", daemon=True)
        self._thread.start()

    def expect(self, owned: OwnedShard | None) -> None:
        """Set the lease that runs out first under a batch; None while nothing runs.

        Wakes the thread only if it would be late: about once in a lease time while batches run.
        """
        with self._changed:
            self._owned = owned
            if self._written or _due(owned) < self._wakes_at:
                self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _main(self) -> None:
        with self._changed:
            while not self._closed:
                self._rest(self._write_if_due())

    def _rest(self, until: float) -> None:
        # Exactly that time: a batch with the same deadline must not wake the thread.
        self._wakes_at = until
        self._changed.wait(None if until == math.inf else max(0.0, until - self._clock.monotonic()))

    def _write_if_due(self) -> float:
        """Return when the line may be due (monotonic)."""
        owned, now = self._owned, self._clock.monotonic()
        if owned is None or now < _due(owned):
            if self._written:
                logger.warning(
                    "strict exclusion lets this process go on: its batch ended, or its lease was renewed"
                )
            self._written = False
            return _due(owned)
        if not self._written:
            _write(owned, now)
        self._written = True
        return math.inf


def _due(owned: OwnedShard | None) -> float:
    return math.inf if owned is None else owned.deadline - LEFT * owned.lease_seconds


def _write(owned: OwnedShard, now: float) -> None:
    logger.critical(
        "strict exclusion ends this process (SIGKILL) in %.1f s, while a batch of shard %s runs: its lease "
        "was renewed last %.1f s ago. Either Redis does not answer, or the run takes longer than its "
        "max_run: see the lines above. The next owner of the shard runs the batch again.",
        max(0.0, owned.deadline - now),
        owned.shard,
        now - owned.renewed_at,
    )
