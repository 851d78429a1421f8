"""Dumps of a queue: the lines of a file, written and loaded, also into another Redis."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from celery_lowkiq.integration.app import AppContext
from celery_lowkiq.integration.calls import read_id, read_time
from celery_lowkiq.integration.error_text import MAX_ERROR_BYTES
from celery_lowkiq.integration.gate import Gate, Unverified
from celery_lowkiq.integration.records import CallRecord
from celery_lowkiq.integration.settings import LARGEST_PAYLOAD
from celery_lowkiq.rules.dump_format import (
    DumpedCall,
    End,
    Entry,
    Header,
    Line,
    State,
    end_line,
    entry_line,
    header_line,
    read_line,
)
from celery_lowkiq.rules.errors import (
    BadDump,
    ConfigurationError,
    InvalidCall,
    UndecodablePayload,
)
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import Payload, QueueSpec, StoredRecord
from celery_lowkiq.rules.signatures import binds_score, split_record
from celery_lowkiq.store.dump_load import dump_entries, last_score, load_entries
from celery_lowkiq.store.records import id_bytes

#: Maximum of one round trip of a load. One line may exceed the limits on payloads (with calls) and bytes.
CHUNK_LINES = 200
CHUNK_PAYLOADS = 500
#: Maximum number of payloads and calls in a line; a dump writes fewer.
LINE_PAYLOADS = 2000
CHUNK_BYTES = 512 * 1024


@dataclass(frozen=True)
class Loaded:
    """Progress of a load: lines that were read, and how many of them were not loaded before."""

    lines: int
    new: int


def dump_lines(context: AppContext, queue: QueueSpec) -> Iterator[bytes]:
    """Yield the lines of a dump, with newlines; memory use is bounded. Raises StoreError."""
    score = last_score(context.store, queue)
    yield header_line(Header(uuid.uuid4().hex, queue.name, queue.shards, context.settings.serializer, score))
    count = 0
    for entry in dump_entries(context.store, queue):
        count += 1
        yield entry_line(count, entry)
    yield end_line(End(count))


def load_lines(
    context: AppContext,
    queue: QueueSpec,
    lines: Iterable[bytes],
    *,
    renamed: bool,
    again: bool,
    progress: Callable[[Loaded], object] | None,
) -> Loaded:
    """Merge the lines of a dump into a queue. :meth:`.OrderedQueue.load` says more."""
    parsed = _parsed(context, lines)
    header = _header(context, parsed, None if renamed else queue.name)
    if again:
        header = replace(header, dump=uuid.uuid4().hex)
    if header.queue != queue.name and context.signing.mode != "off":
        parsed = _signed_anew(context, header.queue, queue.name, parsed)
    done = Loaded(0, 0)
    for chunk in _chunks(parsed):
        new = load_entries(context.store, queue, header, chunk)
        done = Loaded(done.lines + len(chunk), done.new + new)
        if progress is not None:
            progress(done)
    return done


def _signed_anew(
    context: AppContext, former: str, name: str, parsed: Iterator[tuple[int, Line]]
) -> Iterator[tuple[int, Line]]:
    """Sign for the queue ``name`` what verifies in the queue ``former``; the rest stays unchanged."""
    signing, gate = context.signing, context.gate(former)

    def payload(job_id: str, one: Payload) -> Payload:
        if not gate.is_signed(job_id, one):
            return one
        score = one.score if binds_score(one.signature) else None
        return one._replace(signature=signing.sign_payload(name, id_bytes(job_id), one.data, score))

    def call(job_id: str, one: DumpedCall) -> DumpedCall:
        stored = _stored(job_id, one)
        if not gate.is_signed_record(stored):
            return one
        return one._replace(record=signing.signed_record(name, stored, split_record(one.record)[1]))

    for number, line in parsed:
        if isinstance(line, Entry):
            payloads = tuple(payload(line.id, one) for one in line.payloads)
            calls = tuple(call(line.id, one) for one in line.calls)
            line = replace(line, payloads=payloads, calls=calls)
        yield number, line


def _parsed(context: AppContext, lines: Iterable[bytes]) -> Iterator[tuple[int, Line]]:
    """Yield each checked line with its number. Raises BadDump, which names the position of a bad line."""
    last, gate = 0, context.gate("")
    for place, line in enumerate(lines, 1):
        try:
            number, found = read_line(line)
            if isinstance(found, Header):
                gate = context.gate(found.queue)
            elif isinstance(found, Entry):
                _check(gate, found)
                if number <= last:
                    raise BadDump(f"its number {number} is not above {last}")
                last = number
        except (BadDump, InvalidCall, UndecodablePayload) as error:
            raise BadDump(f"line {place}: {error}. What comes before it may be loaded already") from error
        yield number, found


def _check(gate: Gate, entry: Entry) -> None:
    """Raise InvalidCall for an entry that no call can store, and UndecodablePayload for a payload that the
    app does not accept. The morgue accepts unreadable payloads, also from a worker. Payloads that do
    not verify are loaded unread, for the worker to refuse.
    """
    read_id(entry.id)
    read_time("when", entry.when, None)
    if len(entry.payloads) + len(entry.calls) > LINE_PAYLOADS:
        raise InvalidCall(f"it has more than {LINE_PAYLOADS} payloads or calls: write them in several lines")
    sizes = [len(payload.data) for payload in entry.payloads]
    if max(sizes, default=0) > LARGEST_PAYLOAD or len(read_mark(entry.error or b"")[1]) > MAX_ERROR_BYTES:
        raise InvalidCall(f"a payload or error is larger than {LARGEST_PAYLOAD} or {MAX_ERROR_BYTES} bytes")
    for payload in entry.payloads if entry.state is not State.DEAD else ():
        gate.check_accepted(entry.id, payload)
    for call in entry.calls:
        with suppress(Unverified):
            CallRecord.verified(_stored(entry.id, call), gate)


def _stored(job_id: str, call: DumpedCall) -> StoredRecord:
    return StoredRecord(id_bytes(job_id) + b"\0" + call.digest, -1, call.record)


def _header(context: AppContext, parsed: Iterator[tuple[int, Line]], name: str | None) -> Header:
    _, header = next(parsed, (0, None))
    if not isinstance(header, Header):
        raise BadDump("there is no header: the file is not a dump of celery-lowkiq, or is empty")
    if name not in (None, header.queue):
        raise BadDump(
            f"the dump is of queue {header.queue!r}, not of {name!r}. To load it anyway, pass renamed=True "
            "(--renamed)"
        )
    try:
        context.check_serializer(header.serializer)
    except ConfigurationError as error:
        raise BadDump(f"this app cannot read its payloads: {error}") from error
    return header


def _chunks(parsed: Iterator[tuple[int, Line]]) -> Iterator[list[tuple[int, Entry]]]:
    """Yield the entries in chunks. Raises BadDump when the dump is not complete."""
    chunk: list[tuple[int, Entry]] = []
    payloads, size, count, end = 0, 0, 0, None
    for number, found in parsed:
        if not isinstance(found, Entry):
            end = found
            break
        chunk.append((number, found))
        count += 1
        size += sum(len(payload.data) for payload in found.payloads)
        payloads += len(found.payloads) + len(found.calls)
        if len(chunk) == CHUNK_LINES or payloads >= CHUNK_PAYLOADS or size >= CHUNK_BYTES:
            yield chunk
            chunk, payloads, size = [], 0, 0
    if chunk:
        yield chunk
    if end != End(count) or next(parsed, None) is not None:
        raise BadDump(
            f"the dump is not complete: after {count} lines of jobs comes {end or 'nothing'}. They are "
            "loaded; dump the queue again, and load that dump, too"
        )
