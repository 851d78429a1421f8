"""Failures that belong together, and filters of listings."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.text import last_error_line
from celery_lowkiq.rules.validators import invalid

# Fingerprints of failures: the same error at the same place of the user's code has the same one.

#: Maximum length of the error in a fingerprint, in characters.
MAX_ERROR = 200
#: Begins a stored error that has a fingerprint; then come its 16 digits, and a zero byte.
_MARK = b"\0F"
_MARKED = re.compile(rb"\0F([0-9a-f]{16})\0")
_STANDARD_LIBRARY = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/")
#: Quoted texts, and words with numbers such as 1.5, order-42, a UUID or 0x7f3a.
_PARTS = re.compile(r"""(?<!\w)'[^']*'(?!\w)|(?<!\w)"[^"]*"(?!\w)|[\w-]+(?:[.,:][\w-]*\d[\w-]*)*""")
_DIGIT = re.compile(r"\d")


class Fingerprint(NamedTuple):
    """Common parts of the failures of a group; ``error`` is the type and the masked message."""

    id: str
    error: str
    #: Module and function of the last frame of the user's code; "" when unknown.
    where: str


def fingerprint(
    error: BaseException, framework: tuple[str, ...] = (), clean: Callable[[str], str] = str
) -> Fingerprint:
    """Return the fingerprint of an exception. ``framework``: folders whose frames are nobody's code.

    ``clean`` masks the secrets of a message.
    """
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the user's code
        message = ""
    line = next((line for line in clean(message[:5000]).splitlines() if line.strip()), "").strip()
    return _fingerprint(f"{name}: {line}" if line else name, _place(error.__traceback__, framework))


def text_fingerprint(error: str) -> Fingerprint:
    """Return the fingerprint of the text of an error, when nothing else is known of it."""
    return _fingerprint(last_error_line(error), "")


def masked(text: str) -> str:
    """Mask what differs between failures of one kind: numbers, ids, UUIDs, and quoted texts with digits."""
    return _PARTS.sub(lambda found: _mask(found[0]), text)


def mark_error(print_id: str, data: bytes) -> bytes:
    """Return the stored form of an error with its fingerprint."""
    return _MARK + print_id.encode() + b"\0" + data


def read_mark(data: bytes) -> tuple[str, bytes]:
    """Split a stored error into its fingerprint ("" without one) and the rest."""
    found = _MARKED.match(data)
    return (found[1].decode(), data[found.end() :]) if found else ("", data)


def _fingerprint(error: str, where: str) -> Fingerprint:
    shown = masked(error[: 2 * MAX_ERROR])[:MAX_ERROR]
    digest = hashlib.sha1(f"{where}\0{shown}".encode("utf-8", "replace"), usedforsecurity=False)
    return Fingerprint(digest.hexdigest()[:16], shown, where)


def _mask(part: str) -> str:
    if not _DIGIT.search(part):
        return part
    return f"{part[0]}*{part[0]}" if part[0] in "'\"" else "*"


def _place(step: TracebackType | None, framework: tuple[str, ...]) -> str:
    """The last frame of no library; else of the package of the task's function; else the last one."""
    package, found, of_package, last = "", "", "", ""
    while step is not None:
        code = step.tb_frame.f_code
        if not (framework and code.co_filename.startswith(framework)):
            module = str(step.tb_frame.f_globals.get("__name__", "?"))
            last = f"{module}.{code.co_name}"
            package = package or module.partition(".")[0]
            if not _is_library(code.co_filename):
                found = last
            elif module.partition(".")[0] == package:
                of_package = last
        step = step.tb_next
    return found or of_package or last


def _is_library(path: str) -> bool:
    path = path.replace("\\", "/")
    if any(folder in path for folder in _INSTALLED) or path.startswith("<frozen "):
        return True
    return path.startswith(_STANDARD_LIBRARY)


# Filter of jobs, which listings, searches of failures and actions share.

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
