"""Reads of failures: their groups, and the errors of failing and dead jobs without payloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.views import FailedJob, StoredGroup
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import failures_key, shard_keys
from celery_lowkiq.store.scripts.records import pairs, parse_id, parse_moment
from celery_lowkiq.store.scripts.replies import reads_replies

from .listings import Listing, ListingReader
from .shard_reads import ShardReads

ABOUT = b"about:"
#: Jobs that are read together.
PAGE = 500
#: A listing without filters.
ANY = Listing()


@reads_replies
class FailureReader:
    """Every method may raise StoreError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def groups(self, queue: QueueSpec) -> list[StoredGroup] | None:
        """Return the groups of failures, in no order, in one round trip; foreign data is skipped.

        On a cluster, None while the queue's own master is away.
        """
        (reply,) = self._client.command_answers([("HGETALL", failures_key(queue.name))])
        if isinstance(reply, StoreUnavailable):
            return None
        stored = dict(reply.items() if isinstance(reply, dict) else pairs(reply))
        found = []
        for field, value in stored.items():
            about = stored.get(ABOUT + field)
            count, first, last = (*map(parse_moment, value.split(b" ")), None, None, None)[:3]
            if about is not None and count is not None and first is not None and last is not None:
                found.append(StoredGroup(parse_id(field), int(count), first, last, about))
        return found

    def about(self, queue: QueueSpec, fingerprint: str) -> bytes | None:
        """Return the description of a group; on a cluster, None while the queue's own master is away."""
        field = ABOUT + fingerprint.encode()
        (found,) = self._client.command_answers([("HGET", failures_key(queue.name), field)])
        return None if found is None or isinstance(found, StoreUnavailable) else bytes(found)

    def count(self, reads: ShardReads, *, dead: bool) -> int:
        """Return the number of dead jobs, or of waiting ones that failed."""
        return sum(_counts(reads, _keys(dead)[0]))

    def jobs(
        self, reads: ShardReads, *, dead: bool, since: float | None = None, wanted: Listing = ANY
    ) -> Iterator[Sequence[FailedJob]]:
        """Yield the waiting jobs that failed, or the dead ones that died from ``since`` (Unix s) until now.

        They come shard by shard, in parts of at most PAGE, and tell whether the filters of ``wanted`` have
        them.
        """
        index, _ = _keys(dead)
        counts = _counts(reads, index)
        clocks = reads.clocks() if dead else {}
        minimum = since if dead else None
        for shard, count in zip(reads.shards, counts, strict=True):
            if count:
                listing = Listing(limit=PAGE, minimum=minimum, maximum=clocks.get(shard))
                yield from self._jobs_of(reads, shard, listing, dead, wanted)

    def _jobs_of(
        self, reads: ShardReads, shard: ShardRef, listing: Listing, dead: bool, wanted: Listing
    ) -> Iterator[Sequence[FailedJob]]:
        reader = ListingReader(reads, dead)
        index, errors = _keys(dead)
        names = (errors,) if dead else (errors, "tries")
        entries = reader.merged([(shard, index)], listing, PAGE)
        while part := list(islice(entries, PAGE)):
            ids = [entry.id for entry in part]
            stored = reads.commands(
                [shard] * len(names), [("HMGET", shard_keys(shard)[name], *ids) for name in names]
            )
            if None in stored:
                return
            times = [entry.score for entry in part] if dead else map(_last_try, stored[1])
            fitting = {entry.id for entry in reader.fitting(part, wanted)}
            jobs = zip(ids, times, stored[0], strict=True)
            yield [
                FailedJob(parse_id(job_id), at, error or b"", job_id in fitting) for job_id, at, error in jobs
            ]


def _counts(reads: ShardReads, index: str) -> list[int]:
    counts = reads.commands(reads.shards, [("ZCARD", shard_keys(one)[index]) for one in reads.shards])
    return [count or 0 for count in counts]


def _keys(dead: bool) -> tuple[str, str]:
    """The index and the errors of failing or dead jobs."""
    return ("dead", "dead_errors") if dead else ("failed", "errors")


def _last_try(log: bytes | None) -> float:
    """The Unix time (s) of the last line of a log of tries; 0 when unknown."""
    return parse_moment((log or b"").rpartition(b"\n")[2].partition(b"\t")[0]) or 0.0
