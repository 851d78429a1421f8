"""Listings: pages of waiting, running and dead jobs, merged over shards."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from typing import Any

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.text import by_master
from celery_lowkiq.rules.validators import invalid, is_whole, whole
from celery_lowkiq.store.claims import BEGINNING, CLAIM_BYTES, Position, scan_call, scanned
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.errors import Outcomes
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.records import (
    dump_cursor,
    dump_missing,
    id_bytes,
    load_cursor,
    load_missing,
    load_place,
    not_a_cursor,
    number_text,
    pairs,
    parse_pause,
    seconds_of_time,
)
from celery_lowkiq.store.script import ScriptCall, load

# Reads of the shards of a listing. Those whose master is unreachable are left out, and named.


class ShardReads:
    """Reads the shards of a queue for one listing, or for an action on all that it lists.

    The reply of a shard whose master is unreachable is None, and the shard is not asked again. Methods raise
    StoreError; when all masters are unreachable, StoreUnavailable.
    """

    def __init__(self, client: Client, queue: QueueSpec, after: str | None = None) -> None:
        """``after``: the cursor of the page before, which names shards that it lacks. Raises InvalidCall."""
        self.client = client
        self.shards: tuple[ShardRef, ...] = queue.shard_refs()
        self._away: set[ShardRef] = set()
        self._before = load_missing(after) if after is not None else frozenset()

    @property
    def missing(self) -> dict[ShardRef, str]:
        """The shards that were left out, here or on a page before, with the addresses of their masters."""
        if not (self._away or self._before):
            return {}
        found = (one for one in self.shards if one in self._away or one.index in self._before)
        return {shard: self.client.servers.master_of(shard) for shard in found}

    @property
    def unreachable(self) -> dict[str, str]:
        """The names of the shards that were left out, by the address of their master."""
        return by_master(self.missing)

    def cursor(self, position: str | None) -> str | None:
        """Return the cursor of the next page, which names the shards that were left out until here."""
        if position is None or not (self._away or self._before):
            return position
        return dump_missing(position, self._before.union(shard.index for shard in self._away))

    def commands(self, shards: Sequence[ShardRef | None], commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a command for each of the shards, or for no shard (None), in one round trip."""
        return self._read(self.client.each_command, shards, commands)

    def calls(self, shards: Sequence[ShardRef], calls: Sequence[ScriptCall]) -> list[Any]:
        """Run a script for each of the shards, in one round trip."""
        return self._read(self.client.each, shards, calls)

    def clocks(self) -> dict[ShardRef, float]:
        """Return the time (Unix s) of the master of each shard that is not left out, in one round trip.

        Compare a shard's times with its own master's clock only: those of two masters may differ.
        """
        # On one server, all shards are one part.
        parts = self.client.slices(self.shards, len(self.shards))
        asked = [part[0] for part in parts for _ in range(2)]
        commands = [
            command
            for part in parts
            for command in (("HGET", shard_keys(part[0])["meta"], "shards"), ("TIME",))
        ]
        times = self.commands(asked, commands)[1::2]
        return {
            shard: seconds_of_time(time)
            for part, time in zip(parts, times, strict=True)
            if time is not None
            for shard in part
        }

    def _read(
        self,
        ask: Callable[[dict[int, Any]], Outcomes[int]],
        shards: Sequence[ShardRef | None],
        asked: Sequence[Any],
    ) -> list[Any]:
        there = {n: asked[n] for n, shard in enumerate(shards) if shard not in self._away}
        found, errors = ask(there)
        if errors:
            if (cluster := self.client.cluster) is not None:
                # A dead master is noted by now: its other shards need no attempt of their own.
                self._away.update(one for one in self.shards if cluster.is_unreachable(one))
            self._away.update(shard for n in errors if (shard := shards[n]) is not None)
            if len(self._away) == len(self.shards):
                raise next(iter(errors.values()))
        return [found.get(n) for n in range(len(asked))]


# Reader of listings: entries of sorted indexes of all shards, in one order, in bounded pages.

#: Indexes of waiting jobs by their times; the first two are of jobs that nothing keeps from a claim.
WAITING_INDEXES = ("due", "due_prioritized", "due_paused", "moving")
FREE_INDEXES = WAITING_INDEXES[:2]
#: Maximum length of a page.
MAX_LIMIT = 1000
#: Maximum bytes of a payload in a listing; only foreign data is longer. A single job is read whole.
LARGEST = CLAIM_BYTES
#: Entries that one round trip reads of all indexes together, about; and the least of each.
READ, LEAST = 2000, 4
#: Entries that are searched for a page, and that a step reads.
SEARCHED, STEP = 5000, 1000
#: Sorts by the time at which a job is due, or died.
BY_TIME = ("perform_in", "updated_at")
#: Cursor of Redis, a number of 64 bits, and the run id of the server that gave it.
_POSITION = re.compile(rb"(\d{1,20})\.([0-9a-zA-Z]{0,64})")
_LAST_CURSOR = 2**64 - 1
#: Returns the fingerprint of a stored error.
FingerprintOf = Callable[[bytes], str]


@dataclass(frozen=True)
class Listing:
    """Selection of a page: entries of an index, and how much of each job.

    ``prefix`` is of ids, ``after`` the cursor of the previous page. ``since`` and ``until`` bound when
    (Unix s) a job is due, or died. ``pause``: ``free`` for waiting jobs that nothing keeps from a claim,
    ``paused``, or ``held``. ``failure``: the fingerprint of its error. Raises InvalidCall for an invalid
    length.
    """

    by: str = "id"
    prefix: str = ""
    minimum: float | None = None
    maximum: float | None = None
    reverse: bool = False
    limit: int = 100
    after: str | None = None
    payload_limit: int = 10
    payload_bytes: int = LARGEST
    since: float | None = None
    until: float | None = None
    pause: str = ""
    failure: str = ""

    def __post_init__(self) -> None:
        check_limits(limit=self.limit, payload_limit=self.payload_limit)

    @property
    def is_bounded(self) -> bool:
        """True if the value of the sort has a bound."""
        return (self.minimum, self.maximum) != (None, None)

    @property
    def is_filtered(self) -> bool:
        """True if no sort finds the entries."""
        return (self.since, self.until) != (None, None) or bool(self.pause or self.failure)

    @property
    def bounds(self) -> tuple[str, str]:
        """The least and the largest score."""
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return number_text(low), number_text(high)

    @property
    def times(self) -> tuple[float, float]:
        """The first and the last time (Unix s)."""
        first = -math.inf if self.since is None else self.since
        return first, math.inf if self.until is None else self.until

    def start(self) -> tuple[str, bytes, bool]:
        """Return the start position, and whether it is exclusive. Raises InvalidCall for a wrong cursor."""
        if self.after is not None:
            score, job_id = load_cursor(self.after)
            return number_text(score), job_id, True
        if self.prefix and self.by == "id":
            # No byte of an id is 0xff.
            return "0", id_bytes(self.prefix) + (b"\xff" if self.reverse else b""), self.reverse
        return "", b"", True

    def call(self, shard: ShardRef, index: str) -> ScriptCall:
        """Return the script call that reads the page from one shard."""
        score, job_id, exclusive = self.start()
        minimum, maximum = self.bounds
        return load("page").call(
            {"index": shard_keys(shard)[index]},
            minimum=minimum,
            maximum=maximum,
            after_score=score,
            after_id=job_id,
            past=int(exclusive),
            limit=self.limit,
            reverse=int(self.reverse),
        )

    def narrowed(self, indexes: Sequence[str]) -> Listing:
        """Return the listing without the filters that its sort and these indexes apply."""
        found = self
        if self.pause == "free" and {*indexes} <= {*FREE_INDEXES}:
            found = replace(found, pause="")
        if self.by not in BY_TIME:
            return found
        since, until = self.times
        low = since if self.minimum is None else max(since, self.minimum)
        high = until if self.maximum is None else min(until, self.maximum)
        return replace(found, since=None, until=None, minimum=low, maximum=high)

    def begins(self, entry: IndexEntry) -> bool:
        """True if an entry has the prefix."""
        return entry.id.startswith(id_bytes(self.prefix))


def check_limits(**limits: int) -> None:
    """Raises InvalidCall for an invalid length of a page."""
    for name, value in limits.items():
        if not is_whole(value, 1, MAX_LIMIT):
            raise InvalidCall(invalid(name, value, whole(1, MAX_LIMIT).expected))


@dataclass(slots=True)
class IndexEntry:
    """An entry of a sorted index. Pages of many shards make thousands, which is slow for frozen ones."""

    score: float
    id: bytes
    shard: ShardRef
    index: str = field(default="", compare=False)

    @property
    def position(self) -> tuple[float, bytes]:
        """Sort key of entries."""
        return self.score, self.id


@dataclass(frozen=True)
class Entries:
    """Entries of a page, the cursor of the next page, and how many entries of all were searched, if any."""

    entries: list[IndexEntry]
    next: str | None
    searched: int | None = None
    total: int | None = None


@dataclass
class _Part:
    """Entries read of an index, and the position to read on; ``ended``: nothing is left."""

    shard: ShardRef
    index: str
    listing: Listing
    entries: list[IndexEntry] = field(default_factory=list)
    ended: bool = False
    last: IndexEntry | None = None

    def call(self, most: int) -> ScriptCall:
        """Return the call that reads on: twice as much, for indexes of unequal load, and at most ``most``."""
        if self.last is not None:
            after, limit = dump_cursor(*self.last.position), min(most, 2 * self.listing.limit)
            self.listing = replace(self.listing, after=after, limit=limit)
        return self.listing.call(self.shard, self.index)

    def add(self, reply: list[bytes] | None) -> None:
        """Add a reply; None: the shard's master is unreachable."""
        found = [IndexEntry(float(score), one, self.shard, self.index) for one, score in pairs(reply or [])]
        self.entries += found
        self.last = found[-1] if found else None
        self.ended = len(found) < self.listing.limit

    def until(self, bound: tuple[float, bytes] | None, reverse: bool) -> list[IndexEntry]:
        """Remove and return the entries up to a position; without one all of them."""
        count = len(self.entries)
        if bound is not None:
            ready = (one.position >= bound if reverse else one.position <= bound for one in self.entries)
            count = sum(ready)
        found, self.entries = self.entries[:count], self.entries[count:]
        return found


def stored_fingerprint(error: bytes) -> str:
    """Return the fingerprint that an error is stored with, or "" without one."""
    return read_mark(error)[0]


class ListingReader:
    """Reads the indexes of a queue's shards, of waiting jobs or with ``dead`` of the morgue.

    Methods raise StoreError, and InvalidCall for an invalid cursor.
    """

    def __init__(
        self, reads: ShardReads, dead: bool = False, fingerprint_of: FingerprintOf = stored_fingerprint
    ) -> None:
        self._reads = reads
        self._dead = dead
        self._fingerprint_of = fingerprint_of

    def page(self, indexes: Sequence[str], listing: Listing) -> Entries:
        """Return a page of the indexes, in the order of a listing.

        Where the order does not tell what matches, entries are searched in steps.
        """
        listing = listing.narrowed(indexes)
        by_id = listing.by == "id"
        searches = listing.is_filtered or bool(listing.prefix and not by_id)
        step = STEP if searches else listing.limit
        counts = self._counts(indexes, listing)
        entries = self.merged(counts, listing, step)
        found: list[IndexEntry] = []
        last, searched, ended = None, 0, False
        while not ended and searched < SEARCHED and len(found) < listing.limit:
            part = list(islice(entries, step))
            ended = len(part) < step or (by_id and not listing.begins(part[-1]))
            fitting = self.fitting(part, listing)[: listing.limit - len(found)]
            found += fitting
            if len(found) == listing.limit:
                ended = ended and fitting[-1] == part[-1]
                part = part[: part.index(fitting[-1]) + 1]
            searched += len(part)
            last = part[-1] if part else last
        after = None if ended or last is None else dump_cursor(*last.position)
        return Entries(found, after, searched, sum(counts.values())) if searches else Entries(found, after)

    def pages(self, indexes: Sequence[str], listing: Listing) -> Iterator[list[IndexEntry]]:
        """Yield the entries of all pages."""
        while True:
            page = self.page(indexes, listing)
            yield page.entries
            if page.next is None:
                return
            listing = replace(listing, after=page.next)

    def scan(self, listing: Listing) -> Entries:
        """Return some waiting entries whose ids begin with ``prefix``, in no order.

        The scan reads at most about ``10 * limit`` ids, even if few of them match. An index that has moved to
        another server since the previous page is read from its beginning.
        """
        number, position = (0, BEGINNING) if listing.after is None else _scan_position(listing.after)
        prefix, limit = id_bytes(listing.prefix), listing.limit
        found: dict[bytes, IndexEntry] = {}
        budget = 10 * limit
        places = [(shard, index) for shard in self._reads.shards for index in WAITING_INDEXES]
        while number < len(places) and len(found) < limit and budget > 0:
            shard, index = places[number]
            (reply,) = self._reads.calls([shard], [scan_call(shard_keys(shard)[index], position, limit)])
            position, members = scanned(reply) if reply is not None else (BEGINNING, [])
            found |= {
                job_id: IndexEntry(float(score), job_id, shard)
                for job_id, score in members
                if job_id.startswith(prefix)
            }
            if reply is not None:
                budget -= max(len(members), 1)
            if not position.cursor:
                number, position = number + 1, BEGINNING
        rest = f"{position.cursor}.{position.server}".encode() if position.cursor else b""
        return Entries(list(found.values()), dump_cursor(number, rest) if number < len(places) else None)

    def _counts(self, indexes: Sequence[str], listing: Listing) -> dict[tuple[ShardRef, str], int]:
        """Return the indexes that have entries within the bounds of a listing, and how many.

        Takes one round trip. Of many shards, most indexes are empty, and a count costs less than a page.
        """
        # Check the cursor also when all are empty.
        listing.start()
        places = [(shard, index) for shard in self._reads.shards for index in indexes]
        counts = self._reads.commands(
            [shard for shard, _ in places],
            [("ZCOUNT", shard_keys(shard)[index], *listing.bounds) for shard, index in places],
        )
        return {place: count for place, count in zip(places, counts, strict=True) if count}

    def merged(
        self, places: Collection[tuple[ShardRef, str]], listing: Listing, wanted: int
    ) -> Iterator[IndexEntry]:
        """Yield the entries of the indexes at ``places`` in the order of a listing; its limit does not count.

        ``wanted``: how many entries are taken, about.
        """
        size = min(wanted, max(LEAST, READ // max(1, len(places))))
        first, most = replace(listing, limit=size), max(size, min(wanted, READ // 2))
        parts = [_Part(*place, first) for place in places]
        while parts:
            short = [part for part in parts if not part.ended and len(part.entries) < size // 2 + 1]
            replies = self._reads.calls([part.shard for part in short], [part.call(most) for part in short])
            for part, reply in zip(short, replies, strict=True):
                part.add(reply)
            # Entries before the last one of each index that goes on are complete.
            ends = [part.entries[-1].position for part in parts if not part.ended]
            bound = (max(ends) if listing.reverse else min(ends)) if ends else None
            ready = chain.from_iterable(part.until(bound, listing.reverse) for part in parts)
            found = sorted(ready, key=lambda one: one.position, reverse=listing.reverse)
            # A job that was paused or resumed between two replies may be in two indexes.
            yield from (entry for entry, _ in groupby(found))
            parts = [part for part in parts if part.entries or not part.ended]

    def fitting(self, entries: list[IndexEntry], listing: Listing) -> list[IndexEntry]:
        """Return the entries that match the filters of a listing, in their order."""
        found = [one for one in entries if listing.begins(one)] if listing.prefix else entries
        if listing.pause:
            pauses = self._fields(found, "ZMSCORE", "paused")
            found = [one for one, pause in zip(found, pauses, strict=True) if _pause(pause) == listing.pause]
        if (listing.since, listing.until) != (None, None):
            since, until = listing.times
            found = [one for one, at in zip(found, self._times(found), strict=True) if since <= at <= until]
        if listing.failure:
            errors = self._fields(found, "HMGET", "dead_errors" if self._dead else "errors")
            marks = (self._fingerprint_of(error) if error else "" for error in errors)
            found = [one for one, mark in zip(found, marks, strict=True) if mark == listing.failure]
        return found

    def _times(self, entries: list[IndexEntry]) -> Iterator[float]:
        """When each is due, or died; a job that has gone matches nothing."""
        indexes = ("dead",) if self._dead else WAITING_INDEXES
        columns = [self._fields(entries, "ZMSCORE", index) for index in indexes]
        for scores in zip(*columns, strict=True):
            yield next((float(score) for score in scores if score is not None), math.nan)

    def _fields(self, entries: list[IndexEntry], command: str, key: str) -> list[Any]:
        """A value of each entry's id, in one round trip; None in a shard whose master is unreachable."""
        by_shard: dict[ShardRef, list[bytes]] = defaultdict(list)
        for entry in entries:
            by_shard[entry.shard].append(entry.id)
        commands = [(command, shard_keys(shard)[key], *ids) for shard, ids in by_shard.items()]
        replies = self._reads.commands(list(by_shard), commands)
        values = {
            shard: iter(reply if reply is not None else [None] * len(by_shard[shard]))
            for shard, reply in zip(by_shard, replies, strict=True)
        }
        return [next(values[entry.shard]) for entry in entries]


def _scan_position(after: str) -> tuple[int, Position]:
    """Return the place of an index among those of all shards, and how far its scan has come."""
    place, rest = load_place(after)
    if not rest:
        return place, BEGINNING
    found = _POSITION.fullmatch(rest)
    if found is None or int(found[1]) > _LAST_CURSOR:
        raise not_a_cursor(after)
    return place, Position(int(found[1]), found[2].decode())


def _pause(score: Any) -> str:
    """Pause or hold that keeps a job from a claim, by its entry in `paused`."""
    held, paused = parse_pause(b"" if score is None else number_text(float(score)).encode())
    return "free" if held is None and paused is None else "paused" if held is None else "held"
