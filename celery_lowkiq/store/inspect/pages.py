"""Pages of sorted indexes, merged over the shards of a queue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.validators import invalid, is_whole, whole
from celery_lowkiq.store.jobs.claims import CLAIM_BYTES
from celery_lowkiq.store.jobs.scan import BEGINNING, Position, scan_call, scanned
from celery_lowkiq.store.scripts.cursors import dump_position, dump_scan, load_position, load_scan
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import id_bytes, number_text
from celery_lowkiq.store.scripts.script import ScriptCall, load

from .merging import IndexEntry, filled, merged
from .shard_reads import ShardReads

#: Indexes of waiting jobs by their times.
WAITING_INDEXES = ("due", "due_prioritized", "due_paused", "moving")
#: Maximum length of a page.
MAX_LIMIT = 1000
#: Maximum bytes of a payload in a listing; only foreign data is longer. A single job is read whole.
LARGEST = CLAIM_BYTES


@dataclass(frozen=True)
class Listing:
    """Which entries of an index a page shows, and how much of each job.

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

    def start(self) -> tuple[str, bytes, bool]:
        """Return the start position, and whether it is exclusive. Raises InvalidCall for a wrong cursor."""
        if self.after is not None:
            score, job_id = load_position(self.after)
            return number_text(score), job_id, True
        if self.prefix and self.by == "id":
            # No byte of an id is 0xff.
            return "0", id_bytes(self.prefix) + (b"\xff" if self.reverse else b""), self.reverse
        return "", b"", True

    def call(self, shard: ShardRef, index: str) -> ScriptCall:
        """Return the script call that reads the page from one shard."""
        score, job_id, exclusive = self.start()
        return load("page").call(
            {"index": shard_keys(shard)[index]},
            minimum=number_text(-math.inf if self.minimum is None else self.minimum),
            maximum=number_text(math.inf if self.maximum is None else self.maximum),
            after_score=score,
            after_id=job_id,
            past=int(exclusive),
            limit=self.limit,
            reverse=int(self.reverse),
        )


def check_limits(**limits: int) -> None:
    """Raises InvalidCall for an invalid length of a page."""
    for name, value in limits.items():
        if not is_whole(value, 1, MAX_LIMIT):
            raise InvalidCall(invalid(name, value, whole(1, MAX_LIMIT).expected))


def read_page(
    reads: ShardReads, indexes: Sequence[str], listing: Listing
) -> tuple[list[IndexEntry], str | None]:
    """Return a page merged over the indexes of all shards, and the position of the next page.

    Raises StoreError, and InvalidCall for an invalid cursor.
    """
    places = filled(reads, indexes, listing)
    entries = list(islice(merged(reads, places, listing, listing.limit), listing.limit))
    full = len(entries) == listing.limit
    return entries, dump_position(*entries[-1].position) if full else None


def read_pages(reads: ShardReads, indexes: Sequence[str], listing: Listing) -> Iterator[list[IndexEntry]]:
    """Yield all pages of a listing. Raises as :func:`read_page`."""
    after = listing.after
    while True:
        entries, after = read_page(reads, indexes, replace(listing, after=after))
        yield entries
        if after is None:
            return


def read_scan(reads: ShardReads, listing: Listing) -> tuple[list[IndexEntry], str | None]:
    """Return some waiting entries whose ids begin with ``prefix``, in no order, and the position to go on.

    The scan reads at most about ``10 * limit`` ids, even if few of them match. An index that has moved to
    another server since the previous page is read from its beginning. Raises as :func:`read_page`.
    """
    number, position = 0, BEGINNING
    if listing.after is not None:
        number, given = load_scan(listing.after)
        position = Position(*given)
    prefix, limit = id_bytes(listing.prefix), listing.limit
    found: dict[bytes, IndexEntry] = {}
    budget = 10 * limit
    places = [(shard, index) for shard in reads.shards for index in WAITING_INDEXES]
    while number < len(places) and len(found) < limit and budget > 0:
        shard, index = places[number]
        (reply,) = reads.calls([shard], [scan_call(shard_keys(shard)[index], position, limit)])
        position, entries = scanned(reply) if reply is not None else (BEGINNING, [])
        found |= {
            job_id: IndexEntry(float(score), job_id, shard)
            for job_id, score in entries
            if job_id.startswith(prefix)
        }
        if reply is not None:
            budget -= max(len(entries), 1)
        if not position.cursor:
            number, position = number + 1, BEGINNING
    return list(found.values()), dump_scan(number, *position) if number < len(places) else None
