"""The entries of several sorted indexes in one order, read in parts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.cursors import dump_position
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import number_text, pairs
from celery_lowkiq.store.scripts.script import ScriptCall

from .shard_reads import ShardReads

if TYPE_CHECKING:
    from .pages import Listing

#: Entries that one round trip reads of all indexes together, about; and the least of each.
READ, LEAST = 2000, 4


@dataclass(slots=True)
class IndexEntry:
    """An entry of a sorted index. Pages of many shards make thousands, which is slow for frozen ones."""

    score: float
    id: bytes
    shard: ShardRef
    index: str = field(default="", compare=False)

    @property
    def position(self) -> tuple[float, bytes]:
        """What entries are sorted by."""
        return self.score, self.id


@dataclass
class _Part:
    """What was read of an index, and how to read on; ``ended``: there is nothing more."""

    shard: ShardRef
    index: str
    listing: Listing
    entries: list[IndexEntry] = field(default_factory=list)
    ended: bool = False
    last: IndexEntry | None = None

    def call(self, most: int) -> ScriptCall:
        """Return the call that reads on: twice as much, for indexes of unequal load, and at most ``most``."""
        if self.last is not None:
            after, limit = dump_position(*self.last.position), min(most, 2 * self.listing.limit)
            self.listing = replace(self.listing, after=after, limit=limit)
        return self.listing.call(self.shard, self.index)

    def add(self, reply: list[bytes] | None) -> None:
        """Add a reply; None: the shard's master is away."""
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


def filled(reads: ShardReads, indexes: Sequence[str], listing: Listing) -> dict[tuple[ShardRef, str], int]:
    """Return the indexes that have entries within the bounds of a listing, and how many.

    Takes one round trip. Of many shards, most indexes are empty, and a count costs less than a page. Raises
    InvalidCall for an invalid cursor.
    """
    listing.start()
    low = number_text(-math.inf if listing.minimum is None else listing.minimum)
    high = number_text(math.inf if listing.maximum is None else listing.maximum)
    places = [(shard, index) for shard in reads.shards for index in indexes]
    counts = reads.commands(
        [shard for shard, _ in places],
        [("ZCOUNT", shard_keys(shard)[index], low, high) for shard, index in places],
    )
    return {place: count for place, count in zip(places, counts, strict=True) if count}


def merged(
    reads: ShardReads, places: Collection[tuple[ShardRef, str]], listing: Listing, wanted: int
) -> Iterator[IndexEntry]:
    """Yield the entries of the indexes at ``places`` in the order of a listing; its limit does not count.

    ``wanted``: how many entries are taken, about. May raise StoreError.
    """
    size = min(wanted, max(LEAST, READ // max(1, len(places))))
    first, most = replace(listing, limit=size), max(size, min(wanted, READ // 2))
    parts = [_Part(*place, first) for place in places]
    while parts:
        short = [part for part in parts if not part.ended and len(part.entries) < size // 2 + 1]
        replies = reads.calls([part.shard for part in short], [part.call(most) for part in short])
        for part, reply in zip(short, replies, strict=True):
            part.add(reply)
        # What comes before the last entry of each index that goes on is complete.
        ends = [part.entries[-1].position for part in parts if not part.ended]
        bound = (max(ends) if listing.reverse else min(ends)) if ends else None
        ready = chain.from_iterable(part.until(bound, listing.reverse) for part in parts)
        found = sorted(ready, key=lambda one: one.position, reverse=listing.reverse)
        # A job that was paused or resumed between two replies may be in two indexes.
        yield from (entry for entry, _ in groupby(found))
        parts = [part for part in parts if part.entries or not part.ended]
