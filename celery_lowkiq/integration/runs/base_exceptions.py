"""Exceptions of a task's code that are no ``Exception``: they end the worker, or fail the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kombu.utils.encoding import safe_repr

from celery_lowkiq.rules.errors import LowkiqError

T = TypeVar("T")

#: These end the worker; all others fail the run.
ENDS_WORKER = (SystemExit, KeyboardInterrupt, GeneratorExit)


class RunAborted(LowkiqError):
    """The run has failed by a ``BaseException`` such as ``asyncio.CancelledError``, its ``__cause__``.

    Celery takes only an ``Exception`` for a failure.
    """


_cause: Any = vars(BaseException)["__cause__"]
_context: Any = vars(BaseException)["__context__"]


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


def original_error(failure: BaseException) -> BaseException:
    """The exception that the task's code raised."""
    cause = failure.__cause__ if isinstance(failure, RunAborted) else None
    return failure if cause is None else cause


def forget_tracebacks(errors: Iterable[BaseException]) -> None:
    """Drop the tracebacks of exceptions, and of those that led to them."""
    found = list(errors)
    for error in found:
        # An exception that is a frozen dataclass refuses assignments.
        BaseException.with_traceback(error, None)
        # Read as the interpreter does: the class may have a property of this name, or a __getattribute__.
        for earlier in (_cause.__get__(error), _context.__get__(error)):
            if earlier is not None and not any(earlier is known for known in found):
                found.append(earlier)


def call_user_code(function: Callable[[], T]) -> T:
    """Call the function. Raises RunAborted for a ``BaseException`` that fails the run."""
    try:
        return function()
    except (Exception, *ENDS_WORKER):
        raise
    except BaseException as raised:
        raise as_failure(raised) from raised
