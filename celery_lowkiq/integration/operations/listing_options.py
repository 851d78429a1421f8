"""Options of listings, as users give them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from celery import Celery

from celery_lowkiq.integration.calls.validation import read_score, read_time
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.job_filter import TimeBounds, age_bounds, both, state_bounds
from celery_lowkiq.rules.validators import invalid
from celery_lowkiq.store.inspect.listings import Listing

BOUNDS = ("minimum", "maximum")
TIMES = ("perform_in", "updated_at")


def read_listing(app: Celery, by: str, options: Mapping[str, Any], states: Sequence[str]) -> Listing:
    """Return the listing sorted by ``by``, of jobs with these states. Raises InvalidCall."""
    read = partial(read_time, tz=app.timezone) if by in TIMES else _read_number
    bounds = {name: read(name, options[name]) for name in BOUNDS if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in ("state", "age")}
    filters = _filters(options.get("state") or "", options.get("age") or "", states, time.time())
    return Listing(by, **{**others, **bounds, **filters})


def _filters(state: str, age: str, states: Sequence[str], now: float) -> dict[str, Any]:
    if state and state not in states:
        raise InvalidCall(invalid("state", state, f"one of {', '.join(states)}"))
    times = both(state_bounds(state, now), age_bounds(age, now) if age else TimeBounds())
    pause = "free" if state in ("due", "scheduled") else state
    return {**times._asdict(), "pause": pause}


def _read_number(name: str, value: Any) -> float | None:
    return read_score(value, None, name)
