"""Which failing and dead jobs an operator means: by error, by group, and by time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

#: Seconds of a unit of ages.
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_AGE = re.compile(r"(\d{1,9})(s|m|min|h|d)")


@dataclass(frozen=True)
class FailureFilter:
    """What a job must match. Empty and None match all.

    ``error``: pattern of the line of its error, in which ``*`` is any text and ``?`` any character; without
    them also just the type. ``failure``: fingerprint of its group. ``since``: it failed at or after this
    Unix time (s).
    """

    error: str = ""
    failure: str = ""
    since: float | None = None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in self.error)
        return re.compile(f"(?:{''.join(parts)})(?:: .*)?", re.DOTALL)

    def matches(self, line: str, failure: str, at: float) -> bool:
        """Whether a job matches by the line of its error, its group, and the time of its last failure."""
        if self.failure and failure != self.failure:
            return False
        if self.since is not None and at < self.since:
            return False
        return not self.error or self._pattern.fullmatch(line) is not None


def age_seconds(text: str) -> float | None:
    """Return the seconds of an age such as ``90s``, ``30min``, ``2h``, ``7d``; None for other text."""
    found = _AGE.fullmatch(text)
    return float(int(found[1]) * _UNITS[found[2]]) if found else None
