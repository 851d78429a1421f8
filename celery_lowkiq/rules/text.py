"""Times, durations, ids and errors as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from itertools import groupby

from .models import ShardRef

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
#: Longest error that is quoted in a sentence, in characters.
QUOTED = 200
#: Where Python begins to tell of the frames that led to an error.
TRACEBACK = "Traceback (most recent call last):"


def duration(seconds: float) -> str:
    """The two largest units of so many s: ``3 h 12 min``, ``40 s``, ``0.3 s``."""
    if seconds < 1:
        return f"{max(0.0, seconds):.1f} s"
    left, parts = round(seconds), []
    for unit, size in UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)


def moment(at: float) -> str:
    """A Unix time (s), in UTC."""
    try:
        return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"Unix time {at:.0f}"


def since(at: float, now: float) -> str:
    """``since 2026-11-21 10:00:00 UTC (40 s ago)``."""
    return f"since {moment(at)} ({duration(now - at)} ago)"


def error_line(error: str) -> str:
    """The one line of an error that says what it was: of a traceback the first behind its frames, since a
    message may go on for many more; of another text the last.
    """
    lines = [line for line in error.splitlines() if line.strip()]
    starts = [place for place, line in enumerate(lines) if line == TRACEBACK]
    said = (line for line in lines[starts[-1] + 1 :] if not line[0].isspace()) if starts else iter(())
    return next(said, lines[-1] if lines else "").strip()


def job_names(ids: Sequence[str], count: int) -> str:
    """``job 7``, ``jobs 7, 8 and 12 more``; ``count`` is of all, ``ids`` of some."""
    named = ", ".join(ids)
    more = f" and {count - len(ids)} more" if count > len(ids) else ""
    return f"job{'s' if count > 1 else ''} {named}{more}"


def ranges(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 5]``, sorted, as ``0-2,5``."""
    parts = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def shard_names(shards: Iterable[ShardRef]) -> str:
    """``orders/0-2,5, pay/1``."""
    by_queue = groupby(sorted(shards), key=lambda shard: shard.queue)
    return ", ".join(f"{queue}/{ranges(shard.index for shard in found)}" for queue, found in by_queue)


def escaped(text: str) -> str:
    """Text from outside on one line: what is not printable, and could forge a line or speak to a terminal,
    stands as an escape.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def shortened(text: str, width: int) -> str:
    """At most so many characters of it."""
    return text if len(text) <= width else text[: width - 3] + "..."


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
