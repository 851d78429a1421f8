"""Pages that no index finds: entries are read in bounded steps, and those that do not match are left out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.cursors import dump_position
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import id_bytes, number_text, parse_pause

from .merging import IndexEntry, filled, merged
from .pages import WAITING_INDEXES, Listing, read_page
from .shard_reads import ShardReads

#: Entries that are searched for a page, and that a step reads.
SEARCHED, STEP = 5000, 1000
#: Sorts by the time at which a job is due, or died.
BY_TIME = ("perform_in", "updated_at")
#: Returns the fingerprint of a stored error.
FingerprintOf = Callable[[bytes], str]


@dataclass(frozen=True)
class Matching:
    """Entries that match, the cursor of the next page, and how many entries of all were searched, if any."""

    entries: list[IndexEntry]
    next: str | None
    searched: int | None = None
    total: int | None = None


def stored_fingerprint(error: bytes) -> str:
    """Return the fingerprint that an error is stored with, or "" without one."""
    return read_mark(error)[0]


def _narrowed(listing: Listing) -> Listing:
    """Return a listing whose sort bounds its times."""
    if listing.by not in BY_TIME:
        return listing
    since, until = _limits(listing)
    low = since if listing.minimum is None else max(since, listing.minimum)
    high = until if listing.maximum is None else min(until, listing.maximum)
    return replace(listing, since=None, until=None, minimum=low, maximum=high)


def _needs_search(listing: Listing, indexes: Sequence[str]) -> bool:
    """Whether the order of the indexes does not tell what matches a narrowed listing."""
    pauses = listing.pause and (listing.pause != "free" or not {*indexes} <= {"due", "due_prioritized"})
    begins = listing.prefix and listing.by != "id"
    others = bool(pauses or begins or listing.failure)
    return others or listing.since is not None or listing.until is not None


class JobSearch:
    """Searches waiting jobs, or with ``dead`` those of the morgue. Methods may raise StoreError."""

    def __init__(
        self, reads: ShardReads, dead: bool, fingerprint_of: FingerprintOf = stored_fingerprint
    ) -> None:
        self._reads = reads
        self.dead = dead
        self._fingerprint_of = fingerprint_of

    def page(self, indexes: Sequence[str], listing: Listing) -> Matching:
        """Return a page of the indexes, in the order of a listing. Raises InvalidCall."""
        listing = _narrowed(listing)
        if _needs_search(listing, indexes):
            return self._search(indexes, listing)
        entries, cursor = read_page(self._reads, indexes, listing)
        within = [one for one in entries if _begins(one, listing)]
        return Matching(within, cursor if len(within) == len(entries) else None)

    def _search(self, indexes: Sequence[str], listing: Listing) -> Matching:
        places = filled(self._reads, indexes, listing)
        entries = merged(self._reads, places, listing, STEP)
        found: list[IndexEntry] = []
        last, searched, ended = None, 0, False
        while not ended and searched < SEARCHED and len(found) < listing.limit:
            step = list(islice(entries, STEP))
            ended = len(step) < STEP or (listing.by == "id" and not _begins(step[-1], listing))
            matching = self.matching(step, listing)[: listing.limit - len(found)]
            found += matching
            if len(found) == listing.limit:
                ended = ended and matching[-1] == step[-1]
                step = step[: step.index(matching[-1]) + 1]
            searched += len(step)
            last = step[-1] if step else last
        after = None if ended or last is None else dump_position(*last.position)
        return Matching(found, after, searched, sum(places.values()))

    def matching(self, entries: list[IndexEntry], listing: Listing) -> list[IndexEntry]:
        """Return the entries that match, in their order."""
        found = [one for one in entries if _begins(one, listing)] if listing.prefix else entries
        if listing.pause:
            pauses = self._fields(found, "ZMSCORE", "paused")
            found = [one for one, pause in zip(found, pauses, strict=True) if _pause(pause) == listing.pause]
        if listing.since is not None or listing.until is not None:
            since, until = _limits(listing)
            found = [one for one, at in zip(found, self._times(found), strict=True) if since <= at <= until]
        if listing.failure:
            errors = self._fields(found, "HMGET", "dead_errors" if self.dead else "errors")
            marks = (self._fingerprint_of(error) if error else "" for error in errors)
            found = [one for one, mark in zip(found, marks, strict=True) if mark == listing.failure]
        return found

    def _times(self, entries: list[IndexEntry]) -> Iterator[float]:
        """When each is due, or died; a job that has gone matches nothing."""
        indexes = ("dead",) if self.dead else WAITING_INDEXES
        columns = [self._fields(entries, "ZMSCORE", index) for index in indexes]
        for scores in zip(*columns, strict=True):
            yield next((float(score) for score in scores if score is not None), math.nan)

    def _fields(self, entries: list[IndexEntry], command: str, key: str) -> list[Any]:
        """A value of each entry's id, in one round trip; None in a shard whose master is away."""
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


def _limits(listing: Listing) -> tuple[float, float]:
    return (
        -math.inf if listing.since is None else listing.since,
        math.inf if listing.until is None else listing.until,
    )


def _begins(entry: IndexEntry, listing: Listing) -> bool:
    return entry.id.startswith(id_bytes(listing.prefix))


def _pause(score: Any) -> str:
    """What keeps a job from a claim, as its entry in `paused` says."""
    held, paused = parse_pause(b"" if score is None else number_text(float(score)).encode())
    return "free" if held is None and paused is None else "paused" if held is None else "held"
