"""Retry delays: the values that ``retry_in=`` accepts, as functions."""

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

#: ``(exception, retry_count) -> s``, or False for no retry. Raises what the user's function raises, and
#: ValueError when that returns an invalid delay.
DelayFunction = Callable[[Any, int], "float | Literal[False]"]

#: Maximum retry delay in s, more than 30 years.
MAX_RETRY_DELAY = 1e9
#: The values that ``retry_in=`` accepts, in a message.
ALLOWED = (
    "seconds from 0, a timedelta, 'exponential', a list of delays, a function of (retry_count) or of "
    "(exc, retry_count), or None"
)
IN_LIST = "seconds from 0, a timedelta, or 'exponential'"
RETURNED = "seconds from 0, a timedelta, 'exponential', None or False"


def default_delay(retry_count: int, randint: Callable[[int, int], int] = random.randint) -> float:
    """Return the delay in s: ``n**4 + 15 + randint(0, 29) * (n + 1)``, as in Lowkiq and Sidekiq."""
    return float(retry_count**4 + 15 + randint(0, 29) * (retry_count + 1))


def exponential(retry_count: int) -> float:
    """Return the delay in s: ``30 + n**5``, as in Gator."""
    return 30.0 + float(retry_count) ** 5


def read_delay_function(retry_in: Any) -> DelayFunction:
    """Return the delay function of a ``retry_in=`` value. Raises ConfigurationError for an invalid one."""
    if callable(retry_in):
        return _delay_function(retry_in)
    if is_list(retry_in):
        return _delay_function(_from_list(retry_in))
    if retry_in is not None and _seconds(retry_in, 0) is None:
        raise ConfigurationError(invalid("retry_in", retry_in, ALLOWED))
    return _delay_function(lambda _: retry_in)


def is_list(retry_in: Any) -> bool:
    """Whether ``retry_in=`` is a list, whose length is also the number of retries."""
    return isinstance(retry_in, (list, tuple))


def takes_exception(function: Callable[..., Any]) -> bool:
    """Whether a function takes (exc, retry_count) rather than (retry_count), by its required parameters.

    Raises ConfigurationError for any other signature.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    others = [p for p in parameters if p not in positional and p.kind is not p.VAR_KEYWORD]
    needs_keyword = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in others)
    if needs_keyword or not (1 <= len(required) <= 2 or (len(positional) == 1 and not others)):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"retry_in={name} is invalid: expected def delay(retry_count) or def delay(exc, retry_count)"
        )
    return len(required) == 2


def _delay_function(function: Callable[..., Any]) -> DelayFunction:
    with_error = takes_exception(function)

    def delay(error: Any, retry_count: int) -> float | Literal[False]:
        answer = function(error, retry_count) if with_error else function(retry_count)
        if answer is None:
            return default_delay(retry_count)
        if answer is False:
            return False
        seconds = _seconds(answer, retry_count)
        if seconds is None:
            raise ValueError(f"retry_in returned {answer!r}: expected {RETURNED}")
        return seconds

    return delay


def _from_list(delays: Sequence[Any]) -> Callable[[int], Any]:
    for place, entry in enumerate(delays):
        if _seconds(entry, place) is None:
            raise ConfigurationError(invalid(f"retry_in[{place}]", entry, IN_LIST))
    if not delays:
        raise ConfigurationError(
            invalid("retry_in", delays, "at least one delay", "Use max_retries=0 for none")
        )
    return lambda retry_count: delays[retry_count] if retry_count < len(delays) else False


def _seconds(value: Any, retry_count: int) -> float | None:
    if isinstance(value, str):
        return exponential(retry_count) if value == "exponential" else None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        return None
    return float(min(value, MAX_RETRY_DELAY))


#: The delays of a task without ``retry_in=``.
default_delays: DelayFunction = read_delay_function(None)
