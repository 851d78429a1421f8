"""Pushes: calls of one queue are admitted, sent to their shards, and merged there."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from celery_lowkiq.rules.errors import LowkiqError, QueueResharded, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Call, Layout, QueueSpec, ShardRef, StoredRecord, shard_of
from celery_lowkiq.rules.policies import MOST_URGENT
from celery_lowkiq.store.call_records import digest, orphaned_records
from celery_lowkiq.store.claims import ERRORS_DIFFER
from celery_lowkiq.store.client import Client, raise_refused
from celery_lowkiq.store.durability import Durability, Level, Pushed, part_of
from celery_lowkiq.store.errors import InconsistentKeys, ShardCountDiffers, WrongType
from celery_lowkiq.store.keys import channel, shard_keys
from celery_lowkiq.store.records import UNREADABLE, number_text, raise_unexpected
from celery_lowkiq.store.registry import ContinueMigration, open_shards
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.script import ScriptCall, Value, load

# Registers or repairs shards that refuse scripts, and sends the scripts again.

#: Maximum number of attempts because a shard may change its count again before the script is sent.
ADMISSIONS = 5

K = TypeVar("K")


class ShardCall(NamedTuple):
    """A script for a shard of a queue."""

    queue: QueueSpec
    shard: ShardRef
    call: ScriptCall


class Admission:
    """Runs scripts. Methods return errors, also the StoreUnavailable of a repair or registration.

    They raise StoreUnavailable when the outcome of all scripts is unknown.
    """

    def __init__(self, client: Client, repairs: Repairs, continue_migration: ContinueMigration) -> None:
        self._client = client
        self._continue_migration = continue_migration
        self._repairs = repairs

    def outcomes(self, calls: Mapping[K, ShardCall]) -> tuple[dict[K, Any], dict[K, LowkiqError]]:
        """Run scripts that check the number of shards. Return their replies, and the errors of others."""
        found, refused = self._client.outcomes({key: each.call for key, each in calls.items()})
        return self._admitted(calls, found, {**refused}) if refused else (found, {})

    def claim_reply(self, claim: ShardCall, reply: Any) -> Any:
        """Return the reply of a claim, or of another attempt after a repair. Raises LowkiqError."""
        if isinstance(reply, StoreError):
            found, errors = self._admitted({0: claim}, {}, {0: reply})
            raise_refused(list(errors.values()))
            return found[0]
        if reply[3] >= ERRORS_DIFFER:
            self._repairs.repair_minor(claim.queue, claim.shard)
        return reply

    def _admitted(
        self, calls: Mapping[K, ShardCall], found: dict[K, Any], errors: dict[K, LowkiqError]
    ) -> tuple[dict[K, Any], dict[K, LowkiqError]]:
        """Send refused calls again as long as that is of use."""
        for _ in range(ADMISSIONS):
            cleared = self._clear(calls, errors) if errors else {}
            if not cleared:
                break
            again = {key: calls[key].call for key, error in cleared.items() if error is None}
            taken, refused = self._client.outcomes(again)
            found |= taken
            errors |= {key: error for key, error in cleared.items() if error is not None}
            errors |= refused
            errors = {key: error for key, error in errors.items() if key not in taken}
        return found, errors

    def _clear(
        self, calls: Mapping[K, ShardCall], errors: Mapping[K, LowkiqError]
    ) -> dict[K, LowkiqError | None]:
        """Handle refused calls. Returns by their key None when a call may be sent again, or an error."""
        found: dict[K, LowkiqError | None] = {}
        strangers = []
        for key, error in errors.items():
            queue, shard, _ = calls[key]
            if isinstance(error, InconsistentKeys):
                found[key] = _refusal(self._repairs.mend, queue, shard)
            elif isinstance(error, ShardCountDiffers) or (
                isinstance(error, WrongType) and self._repairs.clear_meta(shard)
            ):
                strangers.append(key)
        for queue, group in groupby(strangers, key=lambda key: calls[key].queue):
            shards = {key: calls[key].shard for key in group}
            try:
                refused = open_shards(
                    self._client, queue, list(shards.values()), self._repairs, self._continue_migration
                )
                found |= {key: refused.get(shard) for key, shard in shards.items()}
            except LowkiqError as error:
                found |= dict.fromkeys(shards, error)
        return found


def _refusal(
    act: Callable[[QueueSpec, ShardRef], object], queue: QueueSpec, shard: ShardRef
) -> LowkiqError | None:
    """Return the error that ``act`` raises."""
    try:
        act(queue, shard)
    except LowkiqError as error:
        return error
    return None


# Converts calls to scripts that push them.

T = TypeVar("T")


class Signer(Protocol):
    """Signs what a push stores: see ``rules/signatures.py``."""

    def sign_payload(self, queue: str, job_id: bytes, payload: bytes, score: float | None) -> bytes:
        """Return the signature of a payload; ``score``: None when Redis makes it."""

    def sign_record(self, queue: str, job_id: bytes, digest: bytes, record: bytes) -> bytes:
        """Return the signature of a call record."""


#: Called with calls that their shards have stored; again when their push is repeated.
Stored = Callable[[Sequence[Call]], None]

#: Limits of one push script; the last payload may exceed the bytes.
CHUNK_JOBS = 500
CHUNK_BYTES = 1024 * 1024


class Sender:
    """Numbers the pushes of one caller at a time, so that shards recognise a repeated one."""

    def __init__(self) -> None:
        self.id: str = uuid.uuid4().hex
        self.numbers: Iterator[int] = itertools.count(1)


def chunked(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Split calls into parts within the limits of one script, in order."""
    chunk: list[Call] = []
    size = 0
    for call in calls:
        chunk.append(call)
        size += len(call.data) + len(call.record or b"")
        if len(chunk) == CHUNK_JOBS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


_priority = attrgetter("priority")
#: Returns the same object each time, which a look-up finds without a comparison.
_shard = lru_cache(maxsize=8192)(ShardRef)


def turns(queue: QueueSpec, calls: Sequence[Call]) -> Iterable[Mapping[ShardRef, Sequence[Call]]]:
    """Split calls into parts by shard, in order: one chunk of a shard at a time, so that none overtakes a
    refused one.
    """
    if len(calls) > 1:
        return _turns(queue, calls)
    (call,) = calls
    return [{_shard(queue.name, shard_of(call.id, queue.shards)): calls}]


def _turns(queue: QueueSpec, calls: Sequence[Call]) -> Iterator[Mapping[ShardRef, Sequence[Call]]]:
    by_index: defaultdict[int, list[Call]] = defaultdict(list)
    shards = queue.shards
    for call in calls:
        by_index[shard_of(call.id, shards)].append(call)
    waiting = {_shard(queue.name, index): chunked(part) for index, part in by_index.items()}
    turn: Mapping[ShardRef, Sequence[Call]]
    while turn := {shard: chunk for shard, chunks in waiting.items() if (chunk := next(chunks, None))}:
        yield turn


def push_call(
    queue: QueueSpec, shard: ShardRef, sender: Sender, calls: Sequence[Call], signer: Signer | None = None
) -> ScriptCall:
    """Return the script call that pushes calls to their shard with the sender's next number."""
    rest: list[Value] = []
    records: list[Value] = []
    signatures = b""
    usual = queue.policies.priority
    prioritized = usual != MOST_URGENT or any(map(_priority, calls))
    for position, call in enumerate(calls):
        # Most calls have no times. Inline, because a call of each function costs more than what it does.
        job_id = call.id.encode("utf-8", "surrogateescape")
        score = "" if call.score is None and call.sent is None else _score(call)
        when = "" if call.perform_in is None and call.delay is None else _when(call)
        if prioritized:
            when = f"{usual if call.priority is None else call.priority} {when}"
        rest += (job_id, call.data, score, when)
        if signer is not None:
            signatures += signer.sign_payload(queue.name, job_id, call.data, call.score)
        if call.record is not None:
            of = digest(call.data)
            signature = b"" if signer is None else signer.sign_record(queue.name, job_id, of, call.record)
            records += (position, of, signature + call.record)
    policy = queue.policy
    if prioritized:
        policy += " prioritized=1"
    if queue.former_shards is not None:
        policy += _arriving(queue.layout, calls)
    return load("push").call(
        shard_keys(shard),
        rest + records,
        shards=queue.layout.route,
        merge=queue.merge.value,
        policy=policy,
        sender=sender.id,
        n=next(sender.numbers),
        channel=channel(queue.name),
        index=shard.index,
        signatures=signatures,
        records=len(records) // 3,
    )


def _score(call: Call) -> str:
    if call.score is not None:
        return number_text(call.score)
    return "" if call.sent is None else f"~{number_text(call.sent)}"


def _when(call: Call) -> str:
    if call.perform_in is not None:
        return number_text(call.perform_in)
    return "" if call.delay is None else f"+{number_text(call.delay)}"


def _arriving(layout: Layout, calls: Sequence[Call]) -> str:
    """Return the word of a policy that names the calls whose ids may have more in their former shards."""
    found = [str(n) for n, call in enumerate(calls) if layout.former_home(call.id) is not None]
    return f" arriving={','.join(found)}" if found else ""


def retried(pauses: Iterator[float], attempt: Callable[..., T], *args: Any) -> T:
    """Repeat an attempt after each interval (s) while Redis is unavailable. Raises StoreUnavailable after the
    last.
    """
    while True:
        try:
            return attempt(*args)
        except StoreUnavailable:
            pause = next(pauses, None)
            if pause is None:
                raise
        threading.Event().wait(pause)


# Reports calls that a policy dropped in a push, so that they get results.

#: Called with a queue and records of its calls whose payloads were dropped. Must not raise.
Dropped = Callable[[QueueSpec, Sequence[StoredRecord]], None]


def report_dropped(
    client: Client,
    queue: QueueSpec,
    turn: Mapping[ShardRef, Sequence[Call]],
    replies: Mapping[ShardRef, Any],
    reported: set[ShardRef],
    report: Dropped,
) -> None:
    """Report the dropped calls of a push, once for each shard: a push that is repeated gets the same replies.

    Raises StoreError.
    """
    for shard, reply in replies.items():
        if isinstance(reply, list) and shard not in reported:
            reported.add(shard)
            positions, *evicted = reply
            own = [turn[shard][int(position)].record for position in positions.split()]
            if records := tuple(StoredRecord(b"", -1, record) for record in own if record is not None):
                report(queue, records)
            for orphans in orphaned_records(client, shard, evicted):
                report(queue, orphans)
                members = (record.key + record.data for record in orphans)
                client.commands([("ZREM", shard_keys(shard)["calls"], *members)])


# Pushes calls to their shards, and repeats what was refused or may be lost.


class Pusher:
    """Pushes to one store."""

    def __init__(self, client: Client, admission: Admission, durability: Durability) -> None:
        self._client = client
        self._admission = admission
        self._durability = durability
        #: Called with the calls that a push drops by a policy.
        self.dropped: Dropped | None = None
        #: None: nothing is signed.
        self.signer: Signer | None = None
        self._senders: list[Sender] = []
        # Stored layouts of queues that differed from those of calls.
        self._layouts: dict[str, Layout] = {}
        # Addresses of servers that support the durability.
        self._checked: set[str] = set()

    def push(
        self,
        queue: QueueSpec,
        calls: Sequence[Call],
        pauses: Iterable[float] = (),
        stored: Stored | None = None,
    ) -> None:
        """Merge calls into the queue, in one round trip per 500 calls of the fullest shard.

        While Redis is unavailable, a round trip is repeated after each of the retry intervals ``pauses`` (s),
        under its old number. Calls follow the stored number of shards, also when it changes meanwhile.
        ``stored`` gets the stored calls after each round trip. Raises StoreFull, QueueFull, or
        StoreUnavailable: then the outcome is unknown, and some shards may have stored their part. Pushing the
        same calls again is safe.
        """
        try:
            sender = self._senders.pop()
        except IndexError:
            sender = Sender()
        left, waiting = iter(pauses), calls
        try:
            while waiting:
                layout = self._layouts.get(queue.name)
                as_stored = queue if layout is None else queue.with_layout(layout)
                waiting = self._push(sender, as_stored, waiting, left, stored)
        except UNREADABLE as error:
            raise_unexpected(error)
            raise
        finally:
            self._senders.append(sender)

    def _push(
        self,
        sender: Sender,
        queue: QueueSpec,
        calls: Sequence[Call],
        pauses: Iterator[float],
        stored: Stored | None,
    ) -> Sequence[Call]:
        """Push calls; return the calls that shards refused because the queue has another number of shards."""
        rest = iter(turns(queue, calls))
        confirms = self._durability.level is not Level.FAST
        for turn in rest:
            new = set(map(self._client.servers.master_of, turn)) - self._checked if confirms else ()
            # Raises ConfigurationError: nothing was stored.
            if new and self._durability.check(self._client, turn, sender.id):
                self._checked.update(new)
            before = next(sender.numbers) if confirms else 0
            scripts = {
                shard: ShardCall(queue, shard, push_call(queue, shard, sender, chunk, self.signer))
                for shard, chunk in turn.items()
            }
            reported: set[ShardRef] = set()
            resharded = retried(pauses, self._send, queue, scripts, turn, stored, reported)
            if confirms:
                # Before the next turn: its numbers would hide that a failover has lost this one.
                there = [shard for shard in turn if shard not in resharded]
                push = Pushed(there, sender.id, before)
                self._durability.confirm(self._client, there, push=push)
            if resharded:
                later = [call for turn in rest for chunk in turn.values() for call in chunk]
                return [*(call for shard in resharded for call in turn[shard]), *later]
        return ()

    def _send(
        self,
        queue: QueueSpec,
        scripts: Mapping[ShardRef, ShardCall],
        turn: Mapping[ShardRef, Sequence[Call]],
        stored: Stored | None,
        reported: set[ShardRef],
    ) -> Mapping[ShardRef, LowkiqError]:
        """Return the shards that follow another number of shards."""
        replies, errors = self._admission.outcomes(scripts)
        if stored is not None:
            stored([call for shard, calls in turn.items() if shard in replies for call in calls])
        if queue.policy and self.dropped:
            report_dropped(self._client, queue, turn, replies, reported, self.dropped)
        for error in errors.values():
            # Also when another shard's master is unreachable, for the next call.
            if isinstance(error, QueueResharded):
                self._layouts[error.queue] = error.layout
        if errors:
            _raise_refused(errors, len(turn))
        return errors


def _raise_refused(errors: Mapping[ShardRef, LowkiqError], count: int) -> None:
    """Raise the first error, but QueueResharded. StoreUnavailable names the shards that lack their part, if
    others of the ``count`` have stored theirs.
    """
    for error in errors.values():
        if isinstance(error, QueueResharded):
            continue
        if isinstance(error, StoreUnavailable) and len(errors) < count:
            part = part_of(list(errors), count)
            raise type(error)(f"calls may not be stored{part}, the others are: {error}") from error
        raise error
