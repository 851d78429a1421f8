"""Dump format: the lines of a dump file, which holds a queue's jobs as text.

Every line is JSON. The first line is the header; the last one is the end, with the number of lines between
them. The lines between have increasing numbers ``n``, so that a repeated load skips what it has loaded.

A payload is written as JSON when that restores the same bytes, else as base64.
"""

from __future__ import annotations

import base64
import enum
import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from celery_lowkiq.rules.errors import BadDump
from celery_lowkiq.rules.models import Payload, Recorded
from celery_lowkiq.rules.policies import LEAST_URGENT, MOST_URGENT
from celery_lowkiq.rules.validators import is_number, is_whole

FORMAT = "celery-lowkiq dump 1"
#: Maximum bytes of a line: at most 16 payloads of 1 MiB, which base64 makes a third longer.
MAX_LINE_BYTES = 32 * 1024 * 1024
#: Largest integer that Lua and Redis represent exactly.
LARGEST = 2**53


class State(str, enum.Enum):
    """State of a line's job; CALLS for a line of calls."""

    WAITING = "waiting"
    #: Was in processing; is loaded as waiting.
    PROCESSING = "processing"
    DEAD = "dead"
    #: Calls of payloads in the following lines.
    CALLS = "calls"


class DumpedCall(NamedTuple):
    """The record of a call, with the digest of its payload."""

    digest: bytes
    record: bytes


@dataclass(frozen=True)
class Entry:
    """One line about an id; a long job, or one with many calls, has several lines.

    ``when`` (Unix s) is ``perform_in``, or ``updated_at`` of a dead job.
    """

    state: State
    id: str
    when: float = 0.0
    retry_count: int = -1
    error: bytes | None = None
    payloads: tuple[Payload, ...] = ()
    calls: tuple[DumpedCall, ...] = ()
    priority: int = MOST_URGENT
    #: True for a dead job that holds its id.
    held: bool = False


@dataclass(frozen=True)
class Header:
    """The first line. ``last_score`` (us) is the largest score that a shard has generated."""

    dump: str
    queue: str
    shards: int
    serializer: str
    last_score: int


@dataclass(frozen=True)
class End:
    """The last line: the number of lines between it and the header."""

    lines: int


Line: TypeAlias = "Header | Entry | End"


def header_line(header: Header) -> bytes:
    return _line({"format": FORMAT, **vars(header)})


def end_line(end: End) -> bytes:
    return _line({"end": True, **vars(end)})


def entry_line(number: int, entry: Entry) -> bytes:
    """Encode an entry; lines are numbered from 1."""
    fields: dict[str, Any] = {"n": number, "state": entry.state.value, "id": entry.id}
    if entry.state is State.CALLS:
        return _line(fields | {"calls": [[c.digest.hex(), _base64(c.record)] for c in entry.calls]})
    fields |= {"when": entry.when, "retry_count": entry.retry_count}
    if entry.priority != MOST_URGENT:
        fields["priority"] = entry.priority
    if entry.held:
        fields["held"] = True
    if entry.error is not None:
        fields |= _text("error", entry.error)
    return _line(fields | {"payloads": [_payload(payload) for payload in entry.payloads]})


def read_line(line: bytes) -> tuple[int, Line]:
    """Decode a line and its number (0 for header and end). Raises BadDump."""
    try:
        fields = json.loads(line)
        if "format" in fields:
            return 0, _read_header(fields)
        if "end" in fields:
            return 0, End(_whole(fields["lines"], 0))
        return _whole(fields["n"], 1), _read_entry(fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadDump(f"it is not a line of a dump: {type(error).__name__}: {error}") from error


def _line(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:  # an id from outside that is not UTF-8
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _payload(payload: Payload) -> dict[str, Any]:
    fields: dict[str, Any] = {"score": payload.score}
    if payload.recorded is not Recorded.NONE:
        fields["calls"] = payload.recorded.value
    if payload.signature:
        fields["signature"] = payload.signature.decode("latin-1")
    value = _as_json(payload.data)
    return fields | ({"base64": _base64(payload.data)} if value is None else {"value": value[0]})


def _as_json(data: bytes) -> tuple[Any] | None:
    """Return the value in a tuple when encoding it again restores the same bytes, else None."""
    try:
        value = json.loads(data)
        return (value,) if _canonical(value) == data else None
    except (ValueError, RecursionError):
        return None


def _canonical(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _text(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _read_header(fields: dict[str, Any]) -> Header:
    if fields["format"] != FORMAT:
        raise BadDump(f"its format is {fields['format']!r}, this version reads {FORMAT!r}")
    if not re.fullmatch(r"[0-9a-f]{32}", fields["dump"]):
        raise ValueError(f"dump={fields['dump']!r}")
    texts = {name: str(fields[name]) for name in ("dump", "queue", "serializer")}
    return Header(**texts, shards=_whole(fields["shards"], 1), last_score=_whole(fields["last_score"], 0))


def _read_entry(fields: dict[str, Any]) -> Entry:
    state, job_id = State(fields["state"]), fields["id"]
    if not isinstance(job_id, str):
        raise TypeError(f"id={job_id!r} is not a string")
    if state is State.CALLS:
        calls = tuple(
            DumpedCall(bytes.fromhex(digest), _unbase64(record)) for digest, record in fields["calls"]
        )
        return Entry(state, job_id, calls=calls)
    error = str.encode(fields["error"]) if "error" in fields else None
    if error is None and "error_base64" in fields:
        error = _unbase64(fields["error_base64"])
    return Entry(
        state,
        job_id,
        when=_number(fields["when"]),
        retry_count=_whole(fields["retry_count"], -1),
        error=error,
        payloads=tuple(map(_read_payload, fields["payloads"])),
        held=state is State.DEAD and fields.get("held") is True,
        priority=min(_whole(fields.get("priority", MOST_URGENT), MOST_URGENT), LEAST_URGENT),
    )


def _read_payload(fields: dict[str, Any]) -> Payload:
    data = _unbase64(fields["base64"]) if "base64" in fields else _canonical(fields["value"])
    recorded, signature = Recorded(fields.get("calls", "")), _signature(fields.get("signature", ""))
    return Payload(data, _number(fields["score"]), recorded, None, signature)


def _signature(text: str) -> bytes:
    if not re.fullmatch(r"(?:[sS][^\s\0]*)?", text, re.ASCII):
        raise ValueError(f"signature={text!r}")
    return text.encode("latin-1")


def _number(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _whole(value: Any, least: int) -> int:
    if not is_whole(value, least, LARGEST):
        raise ValueError(f"{value!r} is no whole number from {least} on")
    return value
