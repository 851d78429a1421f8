"""Rates as Celery writes them."""

from __future__ import annotations

import math
from typing import Any

from celery.utils.time import rate as celery_rate

from celery_lowkiq.rules.errors import ConfigurationError

RATES = "a number (runs a second) or text as '10/s', '100/m', '1000/h'; 0 or None for no limit"


def read_rate(value: Any) -> float | None:
    """Runs a second of a ``rate_limit``; None for no limit. Raises ConfigurationError."""
    rate = _rate(value)
    if not 0 <= rate < math.inf:
        raise ConfigurationError(f"rate_limit={value!r} is not allowed: {RATES}")
    return rate or None


def is_rate(value: Any) -> bool:
    """Whether it is one, or none."""
    return 0 <= _rate(value) < math.inf


def _rate(value: Any) -> float:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
        return math.nan
    try:
        return float(celery_rate(value))  # type: ignore[arg-type] # celery-types knows text only
    except (ValueError, TypeError, KeyError, OverflowError):
        return math.nan
