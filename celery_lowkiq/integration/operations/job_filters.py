"""Readers of filters, listings and rates, as users give them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from celery import Celery
from celery.utils.time import rate

from celery_lowkiq.integration.calls.validation import read_score, read_time
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.job_filter import FailureFilter, TimeBounds, age_bounds, age_seconds
from celery_lowkiq.rules.validators import invalid
from celery_lowkiq.store.inspect.listings import BY_TIME, Listing

#: Maximum length of a filter, which is compiled.
MAX_FILTER = 2000
#: Options of a listing that its filter has, and those that bound the value of its sort.
LISTED, BOUNDS = ("prefix", "state", "age"), ("minimum", "maximum")
_RATE = re.compile(r"\d{1,9}(\.\d{1,6})?/[smh]")
_MOMENT = re.compile(r"\d{1,10}(\.\d{1,6})?")


def read_filter(values: Mapping[str, Any]) -> FailureFilter:
    """Return the filter of the values of FILTERS, each "" or missing for any.

    Raises InvalidCall.
    """
    since = values.get("since") or None
    time_of = None if since is None else read_since(since)
    error = values.get("error") or ""
    return FailureFilter(
        error and read_text(error), values.get("failure") or "", time_of, **_listed_values(values)
    )


def read_listing(app: Celery, by: str, options: Mapping[str, Any], states: Sequence[str]) -> Listing:
    """Return the listing sorted by ``by``, of jobs with these states. Raises InvalidCall."""
    read = partial(read_time, tz=app.timezone) if by in BY_TIME else _read_number
    bounds = {name: read(name, options[name]) for name in BOUNDS if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in LISTED}
    filters = FailureFilter(**_listed_values(options)).listed(states, time.time())
    return Listing(by, **{**others, **bounds, **filters})


def _listed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values.get(name) or "" for name in LISTED}


def _read_number(name: str, value: Any) -> float | None:
    return read_score(value, None, name)


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
