"""Which jobs of a listing an operator means: by state and age."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import InvalidCall
from .failure_filter import age_seconds
from .validators import invalid

#: States of waiting jobs, and of dead ones.
WAITING_STATES: tuple[str, ...] = ("due", "scheduled", "paused", "held")
DEAD_STATES: tuple[str, ...] = ("held",)
_AGE = re.compile(r"([<>])(\w{2,12})")


class TimeBounds(NamedTuple):
    """Between which Unix times (s) jobs are due, or died; None: no bound."""

    since: float | None = None
    until: float | None = None


def age_bounds(age: str, now: float) -> TimeBounds:
    """Return the bounds of an age: ``>2h``, due or dead for more than 2 hours, or ``<30min``, for less.

    Raises InvalidCall.
    """
    found = _AGE.fullmatch(age)
    seconds = age_seconds(found[2]) if found else None
    if found is None or seconds is None:
        raise InvalidCall(invalid("age", age, "`>` or `<` and a time such as 30min, 2h or 7d"))
    return TimeBounds(None, now - seconds) if found[1] == ">" else TimeBounds(now - seconds, now)


def state_bounds(state: str, now: float) -> TimeBounds:
    """Return the bounds of a state of jobs."""
    return {"due": TimeBounds(None, now), "scheduled": TimeBounds(now, None)}.get(state, TimeBounds())


def job_state(perform_in: float, *, paused: bool, held: bool, now: float) -> str:
    """Return the state of a waiting job, one of WAITING_STATES."""
    if held or paused:
        return "held" if held else "paused"
    return "due" if perform_in <= now else "scheduled"


def both(one: TimeBounds, other: TimeBounds) -> TimeBounds:
    """Return the bounds of what is within both."""
    lows = [bound for bound in (one.since, other.since) if bound is not None]
    highs = [bound for bound in (one.until, other.until) if bound is not None]
    return TimeBounds(max(lows, default=None), min(highs, default=None))
