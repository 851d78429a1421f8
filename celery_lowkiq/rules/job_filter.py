"""The filter of jobs, which listings, searches of failures and actions share."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.validators import invalid

#: States of waiting jobs, and of dead ones.
WAITING_STATES: tuple[str, ...] = ("due", "scheduled", "paused", "held")
DEAD_STATES: tuple[str, ...] = ("held",)
#: Seconds of a unit of ages.
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_AGE = re.compile(r"(\d{1,9})(s|m|min|h|d)")
_AGE_BOUND = re.compile(r"([<>])(\w{2,12})")


def age_seconds(text: str) -> float | None:
    """Return the seconds of an age such as ``90s``, ``30min``, ``2h``, ``7d``; None for other text."""
    found = _AGE.fullmatch(text)
    return float(int(found[1]) * _UNITS[found[2]]) if found else None


class TimeBounds(NamedTuple):
    """Between which Unix times (s) jobs are due, or died; None: no bound."""

    since: float | None = None
    until: float | None = None


def age_bounds(age: str, now: float) -> TimeBounds:
    """Return the bounds of an age: ``>2h``, due or dead for more than 2 hours, or ``<30min``, for less.

    Raises InvalidCall.
    """
    found = _AGE_BOUND.fullmatch(age)
    seconds = age_seconds(found[2]) if found else None
    if found is None or seconds is None:
        raise InvalidCall(invalid("age", age, "`>` or `<` and a time such as 30min, 2h or 7d"))
    return TimeBounds(None, now - seconds) if found[1] == ">" else TimeBounds(now - seconds, now)


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


@dataclass(frozen=True)
class FailureFilter:
    """Conditions on jobs. Empty and None match all.

    ``error``: pattern of the line of its error, in which ``*`` is any text and ``?`` any character; without
    them also just the type. ``failure``: fingerprint of its group. ``since``: it failed at or after this
    Unix time (s). ``prefix``: beginning of its id. ``state``: due, scheduled, paused or held. ``age``:
    ``>2h``, due or dead for more than 2 hours, or ``<30min``, for less. The store matches the last three.
    """

    error: str = ""
    failure: str = ""
    since: float | None = None
    prefix: str = ""
    state: str = ""
    age: str = ""

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        # With the translation of `fnmatch`, the time does not grow with the power of the number of `*`.
        error = self.error.replace("[", "[[]")
        return [re.compile(fnmatch.translate(each)) for each in (error, f"{error}: *")]

    def matches(self, line: str, failure: str, at: float) -> bool:
        """True if a job matches by the line of its error, its group, and the time of its last failure."""
        if self.failure and failure != self.failure:
            return False
        if self.since is not None and at < self.since:
            return False
        return not self.error or any(pattern.match(line) for pattern in self._patterns)

    def listed(self, states: Sequence[str], now: float) -> dict[str, Any]:
        """Return the fields of a listing for prefix, state and age. Raises InvalidCall."""
        if self.state and self.state not in states:
            raise InvalidCall(invalid("state", self.state, f"one of {', '.join(states)}"))
        age = age_bounds(self.age, now) if self.age else TimeBounds()
        by_state = {"due": TimeBounds(None, now), "scheduled": TimeBounds(now, None)}
        pause = "free" if self.state in by_state else self.state
        bounds = both(by_state.get(self.state, TimeBounds()), age)
        return {"prefix": self.prefix, "pause": pause, **bounds._asdict()}


#: Filter that all jobs match.
ANY = FailureFilter()
