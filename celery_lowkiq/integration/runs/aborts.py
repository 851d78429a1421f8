"""Turns a ``BaseException`` of a task's code into a failure of the run, unless it ends the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kombu.utils.encoding import safe_repr

from celery_lowkiq.rules.errors import LowkiqError

T = TypeVar("T")

#: These end the worker, and do not fail the run.
ENDS_WORKER = (SystemExit, KeyboardInterrupt, GeneratorExit)


class RunAborted(LowkiqError):
    """The run has failed by a ``BaseException`` such as ``asyncio.CancelledError``, its ``__cause__``.

    Celery takes only an ``Exception`` for a failure.
    """


def may_fail(kind: type[BaseException]) -> bool:
    """Whether an exception of this class fails a run."""
    return not issubclass(kind, ENDS_WORKER)


def as_failure(raised: BaseException) -> Exception:
    """The exception itself, or a RunAborted with it as cause."""
    if isinstance(raised, Exception):
        return raised
    failure = RunAborted(safe_repr(raised))
    failure.__cause__ = raised
    return failure


def raised_in(failure: BaseException) -> BaseException:
    """The exception that the task's code raised."""
    cause = failure.__cause__ if isinstance(failure, RunAborted) else None
    return failure if cause is None else cause


def failing(function: Callable[[], T]) -> T:
    """Call the function. Raises what fails a run as an Exception; SystemExit and its like pass."""
    try:
        return function()
    except (Exception, *ENDS_WORKER):
        raise
    except BaseException as raised:
        raise as_failure(raised) from raised
