"""A Linux kernel timer that ends this process, even while its threads are blocked or it is stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from celery_lowkiq.rules.errors import ConfigurationError

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
