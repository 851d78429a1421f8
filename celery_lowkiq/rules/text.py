"""Text for people: times, durations, ids and errors; and the depth limit of JSON output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone, tzinfo
from itertools import groupby
from typing import Any

from .models import ShardRef

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
#: No duration of ours has as many seconds: foreign data may have any number, and infinity.
FOREIGN = 1e12
#: Maximum length of an error quoted in a sentence, in characters.
QUOTED = 200
#: Maximum length of a foreign text in a line of a log, in characters.
LINE = 1000
#: First line of a traceback.
TRACEBACK = "Traceback (most recent call last):"
#: A value that JSON can encode inside this number of lists can be encoded in any output of the package.
SPARE_DEPTH = 50


def duration(seconds: float) -> str:
    """Format seconds by their two largest units: ``3 h 12 min``, ``40 s``, ``0.3 s``."""
    if seconds < 1:
        return f"{seconds:.1f} s" if seconds > 0 else "0 s"
    if not seconds < FOREIGN:
        return f"{seconds:g} s"
    remaining, parts = round(seconds), []
    for unit, size in UNITS:
        count, remaining = divmod(remaining, size)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)


def size(count: float) -> str:
    """Format a number of bytes."""
    if count < 1024:
        return f"{count:.0f} B"
    for name in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {name}"
    return f"{count / 1024:.1f} TiB"


def number(value: float) -> str:
    """Format a number with separators."""
    return f"{value:,.0f}" if isinstance(value, int) or float(value).is_integer() else f"{value:,.2f}"


def moment(at: float, zone: tzinfo = timezone.utc) -> str:
    """Format a Unix time (s), in UTC or another zone."""
    try:
        return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S %Z}"
    except (OverflowError, ValueError, OSError):
        return f"Unix time {at:.0f}"


def since(at: float, now: float) -> str:
    """Format a Unix time (s) as ``since 2026-11-21 10:00:00 UTC (40 s ago)``."""
    return f"since {moment(at)} ({duration(now - at)} ago)"


def last_error_line(error: str) -> str:
    """Return the line that names the error: after a traceback's frames the first, of other text the last."""
    lines = [line for line in error.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line == TRACEBACK]
    messages = (line for line in lines[starts[-1] + 1 :] if not line[0].isspace()) if starts else iter(())
    return next(messages, lines[-1] if lines else "").strip()


def count_of(count: int, word: str) -> str:
    """Return ``1 job``, ``2 jobs``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def host_port(host: str, port: int | str) -> str:
    """Join host and port; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def sentence(text: str) -> str:
    """End a text with one full stop."""
    return f"{text.rstrip('. ')}."


def listed(names: Sequence[str], most: int) -> str:
    """Join the first ``most`` names, and say how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def relative(at: float, now: float) -> str:
    """Format a Unix time (s) as seen from now: ``in 3 h 12 min``, ``40 s ago``, ``now``."""
    if abs(at - now) < 1:
        return "now"
    return f"in {duration(at - now)}" if at > now else f"{duration(now - at)} ago"


def format_job_ids(ids: Sequence[str], count: int) -> str:
    """Format ids as ``job 7`` or ``jobs 7, 8 and 12 more``; ``count`` is of all jobs, ``ids`` of some."""
    listed = ", ".join(ids)
    more = f" and {count - len(ids)} more" if count > len(ids) else ""
    return f"job{'s' if count > 1 else ''} {listed}{more}"


def ranges(numbers: Iterable[int]) -> str:
    """Format sorted numbers: ``[0, 1, 2, 5]`` as ``0-2,5``."""
    parts = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def shard_names(shards: Iterable[ShardRef]) -> str:
    """Format shards as ``orders/0-2,5, pay/1``."""
    by_queue = groupby(sorted(shards), key=lambda shard: shard.queue)
    return ", ".join(f"{queue}/{ranges(shard.index for shard in group)}" for queue, group in by_queue)


def by_master(shards: Mapping[ShardRef, str]) -> dict[str, str]:
    """Return the names of shards, given with the addresses of their masters, by address."""
    groups = groupby(sorted(shards, key=lambda shard: (shards[shard], shard)), key=shards.__getitem__)
    return {address: shard_names(group) for address, group in groups}


def lacking(away: Mapping[str, str]) -> list[str]:
    """Sentences about the shards that a listing lacks, given by the address of their master."""
    return [f"{master} was away: this lacks {names}." for master, names in away.items()]


def escaped(text: str) -> str:
    """Escape unprintable characters of untrusted text, which could forge log lines or control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def shortened(text: str, width: int) -> str:
    """Cut text to ``width`` characters."""
    return text if len(text) <= width else text[: width - 3] + "..."


def in_line(value: Any) -> str:
    """What somebody else has sent, as a part of one line of a log: at most LINE characters of its text."""
    return shortened(escaped(str(value)), LINE)


def nested_in_lists(value: Any) -> Any:
    """Wrap a value in SPARE_DEPTH lists, to test that a JSON encoder accepts it at any place."""
    for _ in range(SPARE_DEPTH):
        value = [value]
    return value


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
