"""Rates, as Celery writes them."""

from __future__ import annotations

import math
from typing import Any

from celery.utils.time import rate as celery_rate

from celery_lowkiq.rules.validators import Validator


def _runs_a_second(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
        raise ValueError
    try:
        found = float(celery_rate(value))  # type: ignore[arg-type] # celery-types knows text only
    except (ValueError, TypeError, KeyError, OverflowError):
        raise ValueError from None
    if not 0 <= found < math.inf:
        raise ValueError
    return found or None


#: Reads a rate as runs a second; None for no limit.
RATE = Validator(
    "a number (runs a second) or text as '10/s', '100/m', '1000/h'; 0 or None for no limit", _runs_a_second
)


def read_rate(value: Any) -> float | None:
    """Runs a second of a ``rate_limit``; None for no limit. Raises ConfigurationError."""
    rate: float | None = RATE.check("rate_limit", value)
    return rate
