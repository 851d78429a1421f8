"""What a task's code raises that is no ``Exception``: it fails the run, but for what ends a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kombu.utils.encoding import safe_repr

from celery_lowkiq.rules.errors import LowkiqError

T = TypeVar("T")

#: These end the worker, and fail no run.
ENDS_WORKER = (SystemExit, KeyboardInterrupt, GeneratorExit)


class RunAborted(LowkiqError):
    """The run has failed by a ``BaseException`` that is no ``Exception``, such as ``asyncio.CancelledError``.

    That is its ``__cause__``; Celery takes only an ``Exception`` for a failure.
    """


def may_fail(kind: type[BaseException]) -> bool:
    """Whether what is raised of this class fails a run."""
    return not issubclass(kind, ENDS_WORKER)


def as_failure(raised: BaseException) -> Exception:
    """The error itself, or a RunAborted by it."""
    if isinstance(raised, Exception):
        return raised
    failure = RunAborted(safe_repr(raised))
    failure.__cause__ = raised
    return failure


def raised_in(failure: BaseException) -> BaseException:
    """What the task's code raised."""
    cause = failure.__cause__ if isinstance(failure, RunAborted) else None
    return failure if cause is None else cause


def failing(function: Callable[[], T]) -> T:
    """What the function returns. Raises what fails a run as an Exception, and what ends a worker."""
    try:
        return function()
    except (Exception, *ENDS_WORKER):
        raise
    except BaseException as raised:
        raise as_failure(raised) from raised
