"""Texts for people: durations, times, ids, tables, and the words of the glossary."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from itertools import groupby
from typing import Any

from celery_lowkiq.rules.models import ShardRef

# Text for people: times, durations, ids and errors; and the depth limit of JSON output.

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


def moment(at: float) -> str:
    """Format a Unix time (s) in UTC."""
    try:
        return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S %Z}"
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


def ranges_by_queue(shards: Iterable[ShardRef]) -> dict[str, str]:
    """Format the shards of each queue as ``0-2,5``."""
    groups = groupby(sorted(shards), key=lambda shard: shard.queue)
    return {queue: ranges(shard.index for shard in group) for queue, group in groups}


def shard_names(shards: Iterable[ShardRef]) -> str:
    """Format shards as ``orders/0-2,5, pay/1``."""
    return ", ".join(f"{queue}/{listed}" for queue, listed in ranges_by_queue(shards).items())


def by_master(shards: Mapping[ShardRef, str | None]) -> dict[str, str]:
    """Return the names of shards, given with the addresses of their masters, by address; without an address,
    a shard is left out.
    """
    named = sorted((address, shard) for shard, address in shards.items() if address is not None)
    groups = groupby(named, key=lambda one: one[0])
    return {address: shard_names(shard for _, shard in group) for address, group in groups}


def lacking(unreachable: Mapping[str, str]) -> list[str]:
    """Sentences about the shards that a listing lacks, given by the address of their master."""
    return [f"{master} was unreachable: this lacks {names}." for master, names in unreachable.items()]


def escaped(text: str) -> str:
    """Escape unprintable characters of untrusted text, which could forge log lines or control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def shortened(text: str, width: int) -> str:
    """Cut text to ``width`` characters."""
    return text if len(text) <= width else text[: width - 3] + "..."


def in_line(value: Any) -> str:
    """Foreign text as a part of one line of a log: at most LINE characters."""
    return shortened(escaped(str(value)), LINE)


def nested_in_lists(value: Any) -> Any:
    """Wrap a value in SPARE_DEPTH lists, to test that a JSON encoder accepts it at any place."""
    for _ in range(SPARE_DEPTH):
        value = [value]
    return value


# Times on pages, relative to now with titles in UTC. The dashboard and Flower share them.

#: Texts of :func:`text.moment`.
_MOMENTS = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)", re.ASCII)


def time_element(at: float, now: float) -> str:
    """Return the HTML element of a Unix time (s), relative to ``now``."""
    return _element(at, relative(at, now))


def clock_element(at: float, words: str) -> str:
    """Return the HTML element of a Unix time (s) in ``words``; readers may choose hour and minute instead."""
    return _element(at, words, f' data-words="{escape(words)}"')


def with_moments(text: str, clean: Callable[[str], str] = str) -> str:
    """Return text as HTML; its moments become elements."""
    parts = _MOMENTS.split(text)
    return "".join(_moment(part) if place % 2 else escape(clean(part)) for place, part in enumerate(parts))


def _moment(text: str) -> str:
    try:
        at = datetime.strptime(text, "%Y-%m-%d %H:%M:%S %Z").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return text
    return _element(at, moment(at), " data-exact")


def _element(at: float, text: str, more: str = "") -> str:
    stamp = iso(at)
    if not stamp:
        return f"<time>{escape(text)}</time>"
    return f'<time datetime="{stamp}" title="{moment(at)}"{more}>{escape(text)}</time>'


def iso(at: float) -> str:
    """Format a Unix time (s) as ``2026-11-21T10:00:00Z``; "" for one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return ""


# Words of the glossary that pages explain where they stand.

#: Word and meaning, as in `docs/glossary.md`; a test compares them.
TERMS = {
    "ordered queue": "the jobs of one ordered task in Redis, divided into shards; its name is the task's "
    "name unless `queue_name` sets it",
    "shard": "one of the numbered parts of an ordered queue; an id belongs to shard `crc32(id) % shards`",
    "id": "the key whose calls stay in order, such as an order number",
    "payload": "the data that one call carries; equal payloads of a job are one payload",
    "merge": "the union of payloads when a call, a failed job or a dead job meets a waiting job of its id",
    "score": "the number that orders the payloads of a job; by default the time of arrival",
    "perform_in": "the time, as a Unix timestamp, from which a job is due",
    "due": "waiting, with `perform_in` in the past",
    "scheduled": "waiting, with `perform_in` in the future",
    "priority": "a number from 0 (most urgent) to 9 that orders the due jobs of a shard",
    "waiting": "in the queue, due or not",
    "fresh": "waiting, and never failed",
    "retry": "waiting, and failed before",
    "failing": "waiting, and failed before",
    "processing": "claimed and not yet settled",
    "busy": "claimed and not yet settled",
    "morgue": "the dead payloads of a queue, by id, with their last error",
    "dead": "in the morgue",
    "fingerprint": "what failures of a group share: the type of error, its message without "
    "numbers and ids, and the place in your code",
    "paused": "not to be claimed: a queue, a shard or an id, until an operator resumes it",
    "held": 'not to be claimed while a payload of the id is dead, with `when_dead="hold"` or after `hold`',
    "throughput": "jobs processed in a second, over the last minute or since the first report",
    "lag": "how long the oldest claimable job is due; 0 without one",
    "damaged": "with a key that is missing or has a wrong type: said of a shard",
    "masked": "with `[redacted]` in place of secrets, as `lowkiq_redact` says",
    "batch": "the jobs that one run gets: `{id: [payload, ...]}`",
    "run": "one call of the task's function with a batch",
    "try": "one failed run of a job, in its log of the last ten",
    "node": "one worker process that serves ordered queues",
    "lane": "a thread of a node, with a fixed part of its shards; one run at a time",
    "owner": "the node whose lease covers a shard",
    "lease": "the right of one node to one shard; its owner renews a counter in it",
    "silent": "without a report for longer than its lease time: said of a node",
    "unserved": "without a living owner of any shard: said of a queue",
    "quiet": "finishing runs and starting none: said of a node",
    "resharding": "the move of a queue's jobs to another number of shards",
}


class Terms:
    """The words that a page explains; ``used``: by the name of an explanation, its words and meanings."""

    def __init__(self) -> None:
        self.used: dict[str, list[tuple[str, str]]] = {}

    def use(self, *words: str) -> str:
        """Add an explanation of words, and return its name."""
        name = "-".join(("term", *words)).replace(" ", "-")
        self.used[name] = [(word, TERMS[word]) for word in words]
        return name


# Names that users type: resolved by their last part, and suggestions for misspelled names.

#: Maximum number of names in a message.
LISTED = 20


def full_names(given: str, known: Collection[str]) -> list[str]:
    """Return the name itself if it is known, else the known names that end with it after a dot, sorted."""
    if given in known:
        return [given]
    return sorted(name for name in known if given and name.endswith(f".{given}"))


def similar_names(given: str, known: Collection[str]) -> list[str]:
    """Return known names that look similar, the best match first; last parts of names count, too."""
    by_part: dict[str, list[str]] = {}
    for name in sorted(known):
        for part in {name, name.rpartition(".")[2]}:
            by_part.setdefault(part, []).append(name)
    close = difflib.get_close_matches(given, by_part, n=3, cutoff=0.75)
    return list(dict.fromkeys(name for part in close for name in by_part[part]))[:3]


def did_you_mean(given: str, known: Collection[str]) -> str:
    """Return a sentence that suggests similar names, or an empty string."""
    similar = similar_names(given, known)
    return f"Did you mean {' or '.join(map(repr, similar))}?" if similar else ""


def listed_names(names: Collection[str]) -> str:
    """Return the names on one line, sorted; at most LISTED of them."""
    return listed(sorted(names), LISTED)
