"""Reads of failures: their groups, and the errors of failing and dead jobs without payloads."""

from __future__ import annotations

from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.views import FailedJob, Page, StoredGroup
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import failures_key, shard_keys
from celery_lowkiq.store.scripts.records import pairs, parse_id, parse_moment

from .pages import IndexReader, Listing

ABOUT = b"about:"


class FailureReader:
    """Every method may raise StoreError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._index = IndexReader(client)

    def groups(self, queue: QueueSpec) -> list[StoredGroup]:
        """Return the groups of failures, in no order, in one round trip; foreign data is skipped."""
        (reply,) = self._client.commands([("HGETALL", failures_key(queue.name))])
        stored = dict(reply.items() if isinstance(reply, dict) else pairs(reply))
        found = []
        for field, value in stored.items():
            about = stored.get(ABOUT + field)
            count, first, last = (*map(parse_moment, value.split(b" ")), None, None, None)[:3]
            if about is not None and count is not None and first is not None and last is not None:
                found.append(StoredGroup(parse_id(field), int(count), first, last, about))
        return found

    def about(self, queue: QueueSpec, fingerprint: str) -> bytes | None:
        """Return the description of a group."""
        (found,) = self._client.commands([("HGET", failures_key(queue.name), ABOUT + fingerprint.encode())])
        return found if found is None else bytes(found)

    def now(self) -> float:
        """Return Redis's time (Unix s)."""
        ((seconds, us),) = self._client.commands([("TIME",)])
        return int(seconds) + int(us) / 1_000_000

    def count(self, queue: QueueSpec, *, dead: bool) -> int:
        """Return the number of dead jobs, or of waiting ones that failed."""
        index = "dead" if dead else "failed"
        return sum(self._client.commands([("ZCARD", shard_keys(one)[index]) for one in queue.shard_refs()]))

    def jobs(self, queue: QueueSpec, listing: Listing, *, dead: bool) -> Page[FailedJob]:
        """Return a page of dead jobs by ``updated_at``, or of waiting jobs that failed by ``retry_count``."""
        index, errors = ("dead", "dead_errors") if dead else ("failed", "errors")
        entries, cursor = self._index.page(queue, (index,), listing)
        keys = [shard_keys(entry.shard) for entry in entries]
        places = list(zip(entries, keys, strict=True))
        reads = [("HGET", key[errors], entry.id) for entry, key in places]
        logs = [] if dead else [("HGET", key["tries"], entry.id) for entry, key in places]
        replies = self._client.commands([*reads, *logs]) if reads else []
        found = []
        for place, entry in enumerate(entries):
            at = entry.score if dead else _last_try(replies[len(entries) + place])
            found.append(FailedJob(parse_id(entry.id), at, replies[place] or b""))
        return Page(tuple(found), cursor)


def _last_try(log: bytes | None) -> float:
    """The Unix time (s) of the last line of a log of tries; 0 when unknown."""
    return parse_moment((log or b"").rpartition(b"\n")[2].partition(b"\t")[0]) or 0.0
