"""Options of listings, as users give them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from celery import Celery

from celery_lowkiq.integration.calls.validation import read_score, read_time
from celery_lowkiq.store.inspect.pages import Listing

BOUNDS = ("minimum", "maximum")
TIMES = ("perform_in", "updated_at")


def read_listing(app: Celery, by: str, options: Mapping[str, Any]) -> Listing:
    """Return the listing sorted by ``by``. Raises InvalidCall."""
    read = partial(read_time, tz=app.timezone) if by in TIMES else _read_number
    bounds = {name: read(name, options[name]) for name in BOUNDS if options.get(name) is not None}
    return Listing(by, **{**options, **bounds})


def _read_number(name: str, value: Any) -> float | None:
    return read_score(value, None, name)
