"""Records of calls: how they lie in the shard's key, and how a claim's owner reads and deletes them.

``scripts/lib/call_records.lua`` has the other half. A digest ties a record to its payload, so the record
stays while its job is claimed, fails, is merged, or is recovered. Its number tells whether a call came after
a claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from celery_lowkiq.rules.models import ClaimedCallRecords, Job, Lease, Recorded, ShardRef, StoredRecord
from celery_lowkiq.rules.tracking import TrackerUpdate
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import id_bytes, parse_processing
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

from .tracker_updates import parts, update_commands

DIGEST_BYTES = 10
NUMBER_DIGITS = 12
#: What one step reads: so many calls of so many payloads.
PAGE_CALLS = 200
PAGE_PAYLOADS = 50


def digest(payload: bytes) -> bytes:
    """Stands for a payload; equal for equal ones."""
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class Member:
    """A member of the key ``calls``, in its parts."""

    key: bytes
    digest: bytes
    number: int
    data: bytes


def parse_call(member: bytes) -> Member:
    """A member of the key ``calls``."""
    start = member.index(b"\0") + 1
    number = start + DIGEST_BYTES
    stop = number + NUMBER_DIGITS
    return Member(member[:stop], member[start:number], int(member[number:stop], 16), member[stop:])


def _recorded(job: Job) -> dict[bytes, int]:
    """Positions of the payloads that have recorded calls, by digest."""
    return {
        digest(payload.data): position
        for position, payload in enumerate(job.payloads)
        if payload.recorded is not Recorded.NONE
    }


def _calls(members: Iterable[bytes], positions: dict[bytes, int]) -> tuple[StoredRecord, ...]:
    found = map(parse_call, members)
    return tuple(
        StoredRecord(call.key, positions[call.digest], call.data)
        for call in found
        if call.digest in positions
    )


def jobs_with_calls(jobs: Sequence[Job], reply: list[Any]) -> list[Job]:
    """The jobs with the calls that a claim's reply tells of them: by payload, then by number."""
    if not reply:
        return list(jobs)
    told = {reply[i]: (reply[i + 1], reply[i + 2]) for i in range(0, len(reply), 3)}
    found = []
    for job in jobs:
        if (entry := told.get(id_bytes(job.id))) is not None:
            more, members = entry
            calls = sorted(_calls(members, _recorded(job)), key=lambda call: call.payload)
            job = job._replace(calls=ClaimedCallRecords(tuple(calls), more != b"1"))
        found.append(job)
    return found


def end_calls(lease: Lease, ended: Sequence[tuple[bytes, bytes]]) -> ScriptCall:
    """The command that deletes records, by runs of keys."""
    rest: list[Value] = [key for run in ended for key in run]
    return load("delete_call_records").call(
        shard_keys(lease.shard), rest, owner=lease.owner, epoch=lease.epoch
    )


def orphaned_records(
    client: Client, shard: ShardRef, orphans: list[Any], of: bytes | None = None
) -> Iterator[tuple[StoredRecord, ...]]:
    """Calls whose jobs are gone, page by page; those of a payload that is processed just now are not.

    ``orphans``: what scripts that remove jobs tell of them; ``of``: only this payload is gone.
    Raises StoreError.
    """
    gone_digest = None if of is None else digest(of)
    for position in range(0, len(orphans), 3):
        job_id, upto, processing = orphans[position : position + 3]
        job = parse_processing(job_id, processing or b"")
        alive = _recorded(job)
        start = b"[" + job_id + b"\0"
        while start:
            bounds = (start, b"(" + job_id + b"\1", "LIMIT", 0, PAGE_CALLS)
            (members,) = client.commands([("ZRANGEBYLEX", shard_keys(shard)["calls"], *bounds)])
            found = [parse_call(member) for member in members]
            gone = [
                member
                for member in found
                if member.number <= int(upto)
                and (member.digest not in alive or member.number > job.last_call)
                and gone_digest in (None, member.digest)
            ]
            if gone:
                yield tuple(StoredRecord(member.key, -1, member.data) for member in gone)
            start = b"(" + members[-1] if len(members) == PAGE_CALLS else b""


class CallReader:
    """Reads the calls of claimed jobs. Every method may raise StoreError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def pages(self, shard: ShardRef, job: Job) -> Iterator[tuple[StoredRecord, ...]]:
        """All calls of a claimed job in the order of its payloads, those of a payload by their numbers.

        They come a bounded part at a time; what was read may be ended, or get other data, meanwhile.
        """
        if not job.recorded:
            return
        if job.calls is not None and job.calls.complete:
            yield job.calls.records
            return
        payloads = iter(_recorded(job).items())
        while part := dict(islice(payloads, PAGE_PAYLOADS)):
            yield from self._payloads(shard, job, part)

    def end(
        self, lease: Lease, ended: Sequence[tuple[bytes, bytes]], news: Sequence[TrackerUpdate] = ()
    ) -> None:
        """Tell trackers of calls, and delete records, before their job is settled. Raises NotOwner."""
        told = [call for _, call in update_commands(news)]
        self._client.all([*told, end_calls(lease, ended)])

    def start(self, lease: Lease, records: Iterable[tuple[StoredRecord, bytes]]) -> None:
        """Give calls that are handed to a run other data. Those that were ended meanwhile stay away.
        Raises NotOwner.
        """
        self._client.all(
            [
                load("replace_call_records").call(
                    shard_keys(lease.shard),
                    [
                        value
                        for record, data in part
                        for value in (record.key + record.data, record.key + data)
                    ],
                    owner=lease.owner,
                    epoch=lease.epoch,
                )
                for part in parts(records)
            ]
        )

    def _payloads(
        self, shard: ShardRef, job: Job, positions: dict[bytes, int]
    ) -> Iterator[tuple[StoredRecord, ...]]:
        """Pages of some payloads: the first calls of all come in one round trip; those of a payload that has
        more are read before the next payload's are handed out.
        """
        beginning, upto = id_bytes(job.id) + b"\0", b"%012x" % (job.last_call + 1)
        replies = self._client.commands(
            [_range(shard, b"[" + beginning + found, beginning + found + upto) for found in positions]
        )
        page: list[bytes] = []
        for found, members in zip(positions, replies, strict=True):
            page += members
            while len(members) == PAGE_CALLS:
                yield _calls(page, positions)
                # Behind the call itself, not its record: that may be another one by now.
                after = b"(" + parse_call(members[-1]).key + b"\xff"
                (members,) = self._client.commands([_range(shard, after, beginning + found + upto)])
                page = list(members)
        if page:
            yield _calls(page, positions)


def _range(shard: ShardRef, start: bytes, stop: bytes) -> tuple[Any, ...]:
    """The command that reads a page of members, without ``stop``."""
    return ("ZRANGEBYLEX", shard_keys(shard)["calls"], start, b"(" + stop, "LIMIT", 0, PAGE_CALLS)
