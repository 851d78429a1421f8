"""The filter and the rate of actions on jobs that match, as users give them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from celery.utils.time import rate

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.failure_filter import FailureFilter, age_seconds
from celery_lowkiq.rules.job_filter import TimeBounds, age_bounds
from celery_lowkiq.rules.validators import invalid

#: Maximum length of a filter, which is compiled.
MAX_FILTER = 2000
_RATE = re.compile(r"\d{1,9}(\.\d{1,6})?/[smh]")
_MOMENT = re.compile(r"\d{1,10}(\.\d{1,6})?")


def failure_filter(values: Mapping[str, Any]) -> FailureFilter:
    """Return the filter of the values of FILTERS, each "" or missing for any.

    Raises InvalidCall.
    """
    since = values.get("since") or None
    time_of = None if since is None else read_since(since)
    error = values.get("error") or ""
    listed = {name: values.get(name) or "" for name in ("prefix", "state", "age")}
    return FailureFilter(error and read_text(error), values.get("failure") or "", time_of, **listed)


def read_text(text: str) -> str:
    """Return the text of a filter. Raises InvalidCall, also for an empty one, which would match all."""
    if not text:
        raise InvalidCall("a filter is empty: expected a text. Nothing was changed")
    if len(text) > MAX_FILTER:
        raise InvalidCall(f"a filter is invalid: expected at most {MAX_FILTER} characters")
    return text


def read_since(text: str) -> float:
    """Return the Unix time (s) of an age, or of a time. Raises InvalidCall."""
    age = age_seconds(text)
    if age is not None:
        return time.time() - age
    if not _MOMENT.fullmatch(text):
        raise InvalidCall(invalid("since", text, "an age such as 30min, 2h or 7d, or a Unix time in s"))
    return float(text)


def read_job_age(text: str) -> TimeBounds:
    """Return the bounds of an age of jobs. Raises InvalidCall."""
    return age_bounds(text, time.time())


def read_rate(text: str) -> float:
    """Return jobs a second. Raises InvalidCall."""
    found = rate(text) if _RATE.fullmatch(text) else 0
    if not found:
        raise InvalidCall(invalid("rate", text, "a rate such as 50/s, 600/m or 1000/h"))
    return float(found)
