"""Helpers that know nothing of jobs: clock, threads, loggers, cached properties, middlewares."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import Logger, getLogger
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

# Clocks: the protocol that time is read by, and the machine's own clock.


class Clock(Protocol):
    """A source of wall-clock and monotonic time, in seconds."""

    def time(self) -> float:
        """Return the Unix time in s; it may jump."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. Never goes back; includes time in suspend."""


#: Seconds since an arbitrary start, also those in suspend where the system counts them. The clock of leases
#: and of runs: times of both are compared.
monotonic: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    monotonic = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class SystemClock:
    """The clock of this machine. Outside Linux it does not count suspend, so leases seem longer after it."""

    monotonic: Callable[[], float] = staticmethod(monotonic)

    def time(self) -> float:
        return time.time()


# Threads: where the system allows no further one, work waits, or is done by the caller.


def try_start(thread: threading.Thread) -> RuntimeError | None:
    """Start a thread. Return the error when the process may start no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        return error
    return None


# ``cached_property`` without a lock, for all classes of the package.
#
# Before Python 3.12, that of :mod:`functools` locks for all objects of a class while it makes a value. In a
# process that is forked meanwhile, the thread that would unlock is missing: the next one that asks there
# waits for ever.

if TYPE_CHECKING:
    from functools import cached_property  # noqa: TID251 - its types are those that type checkers know
else:

    class cached_property:  # noqa: N801 - the name of that of functools
        """Keeps what a method returns as the attribute of its object.

        Threads that ask at the same time may each call the method; all get the value that was kept first.
        Thus the method must do nothing but make the value.
        """

        def __init__(self, function):
            self.function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None) -> Any:
            # Without a __set__, Python reads the object's own attributes first: it comes here only once.
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.name, self.function(instance))


__all__ = ["cached_property"]


# Where functions are defined: one that another package has replaced is not where it was.


def is_defined_in(function: Any, *modules: ModuleType) -> bool:
    """True if a function, or that of a bound method, is defined in one of these modules."""
    # Not by attributes, which proxies have, too.
    if type(function) is MethodType:
        function = function.__func__
    files = [module.__file__ for module in modules]
    return type(function) is FunctionType and function.__code__.co_filename in files


# The loggers of the package.

package_logger: Logger = getLogger("celery_lowkiq")
store_logger: Logger = getLogger("celery_lowkiq.store")
worker_logger: Logger = getLogger("celery_lowkiq.worker")
metrics_logger: Logger = getLogger("celery_lowkiq.metrics")
flower_logger: Logger = getLogger("celery_lowkiq.flower")
#: Who changed what.
audit_logger: Logger = getLogger("celery_lowkiq.audit")


# Middlewares: functions that wrap a run or a push.

#: ``def m(task, batch, call)``: returns the result of ``call()``, or raises.
Middleware = Callable[[Any, Any, Callable[[], Any]], Any]


def compose(middlewares: Sequence[Middleware], task: Any, batch: Any, call: Callable[[], Any]) -> Any:
    """Run ``call`` inside the middlewares, the first one outermost."""
    if not middlewares:
        return call()
    first, *rest = middlewares
    return first(task, batch, lambda: compose(rest, task, batch, call))
