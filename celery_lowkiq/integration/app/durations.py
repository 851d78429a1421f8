"""Durations in options and calls: a number of seconds, or a ``timedelta``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery_lowkiq.rules.retry_delays import MAX_RETRY_DELAY


def seconds_of(value: Any) -> float | None:
    """Seconds of a number or timedelta; None for what is neither, or not within (0, MAX_RETRY_DELAY]."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value <= MAX_RETRY_DELAY else None
