"""Which failing and dead jobs an operator means: by error, by group, and by time."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from .cached_property import cached_property

#: Seconds of a unit of ages.
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_AGE = re.compile(r"(\d{1,9})(s|m|min|h|d)")


@dataclass(frozen=True)
class FailureFilter:
    """What a job must match. Empty and None match all.

    ``error``: pattern of the line of its error, in which ``*`` is any text and ``?`` any character; without
    them also just the type. ``failure``: fingerprint of its group. ``since``: it failed at or after this
    Unix time (s). ``prefix``, ``state`` and ``age``: as listings have them; the store matches these.
    """

    error: str = ""
    failure: str = ""
    since: float | None = None
    prefix: str = ""
    state: str = ""
    age: str = ""

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        # As `fnmatch` translates it, the time does not grow with the power of the number of `*`.
        error = self.error.replace("[", "[[]")
        return [re.compile(fnmatch.translate(each)) for each in (error, f"{error}: *")]

    def matches(self, line: str, failure: str, at: float) -> bool:
        """Whether a job matches by the line of its error, its group, and the time of its last failure."""
        if self.failure and failure != self.failure:
            return False
        if self.since is not None and at < self.since:
            return False
        return not self.error or any(pattern.match(line) for pattern in self._patterns)


def age_seconds(text: str) -> float | None:
    """Return the seconds of an age such as ``90s``, ``30min``, ``2h``, ``7d``; None for other text."""
    found = _AGE.fullmatch(text)
    return float(int(found[1]) * _UNITS[found[2]]) if found else None
