"""Records of calls, and updates of trackers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from celery_lowkiq.rules.models import ClaimedCallRecords, Job, Lease, Recorded, ShardRef, StoredRecord
from celery_lowkiq.rules.tracking import TrackerUpdate
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import TrackerKeys, shard_keys, tracker_channel
from celery_lowkiq.store.records import id_bytes, parse_processing, reads_replies
from celery_lowkiq.store.script import ScriptCall, Value, load

# Tracker updates as script calls, which are sent with a settle or alone.

T = TypeVar("T")

#: Maximum number of updates in one script.
STEP = 500
#: Maximum bytes of a stored message.
MAX_TEXT = 1024


def update_commands(news: Iterable[TrackerUpdate]) -> list[tuple[str, ScriptCall]]:
    """Return script calls that update trackers, each with its tracker."""
    calls = []
    for tracker, found in by_tracker(news).items():
        for part in parts(found):
            rest: list[Value] = []
            for each in part:
                rest += each.call, each.shard, each.epoch, each.claim
                rest += each.state.value, each.message_state.value, text_bytes(each.text)
            script = load("track_update").call(TrackerKeys(tracker), rest, channel=tracker_channel(tracker))
            calls.append((tracker, script))
    return calls


def by_tracker(news: Iterable[TrackerUpdate]) -> dict[str, list[TrackerUpdate]]:
    """Group updates by tracker, in their order."""
    found: dict[str, list[TrackerUpdate]] = {}
    for each in news:
        found.setdefault(each.tracker, []).append(each)
    return found


def parts(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of at most STEP values."""
    left = iter(values)
    while part := list(islice(left, STEP)):
        yield part


def text_bytes(text: str) -> bytes:
    """Encode a message, cut to MAX_TEXT bytes."""
    data = text.encode("utf-8", "backslashreplace")
    return data[:MAX_TEXT].decode("utf-8", "ignore").encode()


# Call records of a shard: parses, reads and deletes them; ``push.lua`` writes them.
#
# A record belongs to a payload by its digest, so it stays while the job is claimed, fails, is merged, or is
# recovered. Its number shows whether the call arrived after a claim.

DIGEST_BYTES = 10
NUMBER_DIGITS = 12
_NUMBER = re.compile(rb"[0-9a-f]{%d}" % NUMBER_DIGITS)
#: Limits of one step of a reader.
PAGE_CALLS = 200
PAGE_PAYLOADS = 50


def digest(payload: bytes) -> bytes:
    """Return the digest of a payload in members of the key ``calls``."""
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()


class Member(NamedTuple):
    """Parsed member of the key ``calls``."""

    key: bytes
    digest: bytes
    number: int
    data: bytes


def parse_calls(members: Iterable[bytes]) -> Iterator[Member]:
    """Parse members of the key ``calls``; foreign ones are skipped."""
    for member in members:
        start = member.find(b"\0") + 1
        number = start + DIGEST_BYTES
        stop = number + NUMBER_DIGITS
        if start and _NUMBER.fullmatch(member, number, stop):
            yield Member(member[:stop], member[start:number], int(member[number:stop], 16), member[stop:])


def _recorded(job: Job) -> dict[bytes, int]:
    return {
        digest(payload.data): position
        for position, payload in enumerate(job.payloads)
        if payload.recorded is not Recorded.NONE
    }


def _calls(members: Iterable[bytes], positions: dict[bytes, int]) -> tuple[StoredRecord, ...]:
    return tuple(
        [
            StoredRecord(call.key, positions[call.digest], call.data)
            for call in parse_calls(members)
            if call.digest in positions
        ]
    )


def jobs_with_calls(jobs: Sequence[Job], reply: list[Any]) -> list[Job]:
    """Return the jobs with the calls of a claim's reply, by payload, then by number."""
    entries = {reply[i]: (reply[i + 1], reply[i + 2]) for i in range(0, len(reply), 3)}
    found = []
    for job in jobs:
        if (entry := entries.get(id_bytes(job.id))) is not None:
            more, members = entry
            calls = _calls(members, _recorded(job))
            if len(calls) > 1:
                calls = tuple(sorted(calls, key=attrgetter("payload")))
            job = job._replace(calls=ClaimedCallRecords(calls, more != b"1"))
        found.append(job)
    return found


def end_calls(lease: Lease, ended: Sequence[tuple[bytes, bytes]]) -> ScriptCall:
    """Return the script call that deletes ranges of records."""
    rest: list[Value] = [key for run in ended for key in run]
    return load("delete_call_records").call(
        shard_keys(lease.shard), rest, owner=lease.owner, epoch=lease.epoch
    )


def orphaned_records(
    client: Client, shard: ShardRef, orphans: list[Any], of: bytes | None = None
) -> Iterator[tuple[StoredRecord, ...]]:
    """Yield pages of calls whose jobs were removed, without calls of payloads in processing.

    ``orphans``: see ``lib/processing.lua``; ``of``: the only payload that was removed. Raises StoreError.
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
            found = list(parse_calls(members))
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


@reads_replies
def records_of(client: Client, shard: ShardRef, job_id: str, payload: bytes) -> list[StoredRecord]:
    """Return the first call records of a payload. Raises StoreError."""
    head = id_bytes(job_id) + b"\0" + digest(payload)
    (members,) = client.commands([_range(shard, b"[" + head, head + b"\xff")])
    return [StoredRecord(call.key, -1, call.data) for call in parse_calls(members)]


@reads_replies
class CallReader:
    """Reads the calls of claimed jobs. Every method may raise StoreError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def pages(self, shard: ShardRef, job: Job) -> Iterator[tuple[StoredRecord, ...]]:
        """Yield pages of the calls of a claimed job in the order of its payloads, then by number.

        Calls of earlier pages may be ended, or replaced, meanwhile.
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
        """Update trackers and delete records before the job is settled. Raises NotOwner."""
        updates = [call for _, call in update_commands(news)]
        self._client.all([*updates, end_calls(lease, ended)])

    def start(self, lease: Lease, records: Iterable[tuple[StoredRecord, bytes]]) -> None:
        """Replace the data of calls that are about to run, unless they have ended. Raises NotOwner."""
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
        """Yield pages of some payloads. The first calls of all are read in one round trip, further ones of a
        payload before the calls of the next payload.
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
                # After the key of the call: its data may have been replaced meanwhile.
                after = b"(" + members[-1][: len(beginning + found) + NUMBER_DIGITS] + b"\xff"
                (members,) = self._client.commands([_range(shard, after, beginning + found + upto)])
                page = list(members)
        if page:
            yield _calls(page, positions)


def _range(shard: ShardRef, start: bytes, stop: bytes) -> tuple[Any, ...]:
    return ("ZRANGEBYLEX", shard_keys(shard)["calls"], start, b"(" + stop, "LIMIT", 0, PAGE_CALLS)
