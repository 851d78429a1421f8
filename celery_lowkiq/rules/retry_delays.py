"""How long a failed job waits for its next run: what ``retry_in=`` may be."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any, Literal

from .errors import ConfigurationError
from .validators import invalid

#: ``(exception, retry_count) -> s``, or False: give up. Raises what the user's function raises, and
#: ValueError when that returns no pause.
Pauses = Callable[[Any, int], "float | Literal[False]"]

#: Seconds, more than 30 years: what is longer, was meant as never.
LONGEST_PAUSE = 1e9
#: What ``retry_in=`` may be, in words.
ALLOWED = (
    "seconds from 0, a timedelta, 'exponential', a list of delays, a function of (retry_count) or of "
    "(exc, retry_count), or None"
)
IN_LIST = "seconds from 0, a timedelta, or 'exponential'"
RETURNED = "seconds from 0, a timedelta, 'exponential', None or False"


def default_retry_in(retry_count: int, randint: Callable[[int, int], int] = random.randint) -> float:
    """Pause before the next run, in s: ``n**4 + 15 + randint(0, 29) * (n + 1)``, as Lowkiq and Sidekiq."""
    return float(retry_count**4 + 15 + randint(0, 29) * (retry_count + 1))


def exponential(retry_count: int) -> float:
    """Pause before the next run, in s: ``30 + n**5``, as Gator."""
    return 30.0 + float(retry_count) ** 5


def read_pauses(retry_in: Any) -> Pauses:
    """The policy that a ``retry_in=`` means. Raises ConfigurationError when it means none."""
    if callable(retry_in):
        return _asking(retry_in)
    if is_list(retry_in):
        return _asking(_of_list(retry_in))
    if retry_in is not None and _seconds(retry_in, 0) is None:
        raise ConfigurationError(invalid("retry_in", retry_in, ALLOWED))
    return _asking(lambda _: retry_in)


def is_list(retry_in: Any) -> bool:
    """Whether a ``retry_in=`` says by itself how often a job is retried."""
    return isinstance(retry_in, (list, tuple))


def takes_error(function: Callable[..., Any]) -> bool:
    """Whether it is a function of (exc, retry_count), and not of (retry_count): parameters without a default
    count. Raises ConfigurationError when they cannot be told apart.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    others = [p for p in parameters if p not in positional and p.kind is not p.VAR_KEYWORD]
    refused = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in others)
    if refused or not (1 <= len(needed) <= 2 or (len(positional) == 1 and not others)):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"retry_in={name} is invalid: expected def delay(retry_count) or def delay(exc, retry_count)"
        )
    return len(needed) == 2


def _asking(function: Callable[..., Any]) -> Pauses:
    with_error = takes_error(function)

    def pause(error: Any, retry_count: int) -> float | Literal[False]:
        answer = function(error, retry_count) if with_error else function(retry_count)
        if answer is None:
            return default_retry_in(retry_count)
        if answer is False:
            return False
        seconds = _seconds(answer, retry_count)
        if seconds is None:
            raise ValueError(f"retry_in returned {answer!r}; allowed: {RETURNED}")
        return seconds

    return pause


def _of_list(pauses: Sequence[Any]) -> Callable[[int], Any]:
    for place, entry in enumerate(pauses):
        if _seconds(entry, place) is None:
            raise ConfigurationError(invalid(f"retry_in[{place}]", entry, IN_LIST))
    if not pauses:
        raise ConfigurationError(
            invalid("retry_in", pauses, "at least one delay", "Use max_retries=0 for none")
        )
    return lambda retry_count: pauses[retry_count] if retry_count < len(pauses) else False


def _seconds(value: Any, retry_count: int) -> float | None:
    """None when it is no pause."""
    if isinstance(value, str):
        return exponential(retry_count) if value == "exponential" else None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        return None
    return float(min(value, LONGEST_PAUSE))


#: The delays of a task without ``retry_in=``.
by_default: Pauses = read_pauses(None)
