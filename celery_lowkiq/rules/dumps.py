"""The lines of a dump: a queue as text, to be loaded into another Redis.

Every line is JSON. The first one is the header, the last one the end, which says how many there were. Lines
between have growing numbers ``n``, by which a load that is repeated knows what it has loaded.

A payload stands as the JSON that it is when that gives back its very bytes, else as base64.
"""

from __future__ import annotations

import base64
import enum
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from .errors import BadDump
from .models import Payload, Recorded
from .priorities import LEAST_URGENT, MOST_URGENT
from .validators import is_number, is_whole

FORMAT = "celery-lowkiq dump 1"
#: A line is shorter (bytes): it has at most 16 payloads of 1 MiB, which base64 makes a third longer.
LONGEST_LINE = 32 * 1024 * 1024
#: A longer number is none to Lua and Redis.
LARGEST = 2**53


class State(str, enum.Enum):
    """What a line tells of an id."""

    WAITING = "waiting"
    #: Was being processed; is loaded as waiting.
    PROCESSING = "processing"
    DEAD = "dead"
    #: Calls of payloads that follow.
    CALLS = "calls"


class DumpedCall(NamedTuple):
    """The record of a call, by the digest of its payload."""

    digest: bytes
    record: bytes


@dataclass(frozen=True)
class Entry:
    """What one line says of an id; a long job, or one with many calls, has several.

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


@dataclass(frozen=True)
class Header:
    """The first line. ``last_score`` (us) is the largest that a shard has made."""

    dump: str
    queue: str
    shards: int
    serializer: str
    last_score: int


@dataclass(frozen=True)
class End:
    """The last line: how many there are between it and the header."""

    lines: int


Line: TypeAlias = "Header | Entry | End"


def header_line(header: Header) -> bytes:
    """The header as a line."""
    return _line({"format": FORMAT, **vars(header)})


def end_line(end: End) -> bytes:
    """The end as a line."""
    return _line({"end": True, **vars(end)})


def entry_line(number: int, entry: Entry) -> bytes:
    """An entry as a line; lines are numbered from 1."""
    found: dict[str, Any] = {"n": number, "state": entry.state.value, "id": entry.id}
    if entry.state is State.CALLS:
        return _line(found | {"calls": [[c.digest.hex(), _base64(c.record)] for c in entry.calls]})
    found |= {"when": entry.when, "retry_count": entry.retry_count}
    if entry.priority != MOST_URGENT:
        found["priority"] = entry.priority
    if entry.error is not None:
        found |= _text("error", entry.error)
    return _line(found | {"payloads": [_payload(payload) for payload in entry.payloads]})


def read_line(line: bytes) -> tuple[int, Line]:
    """A line and its number (0 of header and end). Raises BadDump, without the line's place."""
    try:
        found = json.loads(line)
        if "format" in found:
            return 0, _read_header(found)
        if "end" in found:
            return 0, End(_whole(found["lines"], 0))
        return _whole(found["n"], 1), _read_entry(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadDump(f"it is no line of a dump: {type(error).__name__}: {error}") from error


def _line(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:  # an id that was planted in Redis, and is no UTF-8
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _payload(payload: Payload) -> dict[str, Any]:
    found: dict[str, Any] = {"score": payload.score}
    if payload.recorded is not Recorded.NONE:
        found["calls"] = payload.recorded.value
    value = _as_json(payload.data)
    return found | ({"base64": _base64(payload.data)} if value is None else {"value": value[0]})


def _as_json(data: bytes) -> tuple[Any] | None:
    """The value that such bytes are the JSON of, if they come back the same."""
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


def _read_header(found: dict[str, Any]) -> Header:
    if found["format"] != FORMAT:
        raise BadDump(f"its format is {found['format']!r}, this version reads {FORMAT!r}")
    if not re.fullmatch(r"[0-9a-f]{32}", found["dump"]):
        raise ValueError(f"dump={found['dump']!r}")
    texts = {name: str(found[name]) for name in ("dump", "queue", "serializer")}
    return Header(**texts, shards=_whole(found["shards"], 1), last_score=_whole(found["last_score"], 0))


def _read_entry(found: dict[str, Any]) -> Entry:
    state, job_id = State(found["state"]), _of(str, found["id"])
    if state is State.CALLS:
        calls = tuple(
            DumpedCall(bytes.fromhex(digest), _unbase64(record)) for digest, record in found["calls"]
        )
        return Entry(state, job_id, calls=calls)
    return Entry(
        state,
        job_id,
        when=_number(found["when"]),
        retry_count=_whole(found["retry_count"], -1),
        error=found["error"].encode() if "error" in found else _error(found),
        payloads=tuple(map(_read_payload, found["payloads"])),
        priority=min(_whole(found.get("priority", MOST_URGENT), MOST_URGENT), LEAST_URGENT),
    )


def _error(found: dict[str, Any]) -> bytes | None:
    return _unbase64(found["error_base64"]) if "error_base64" in found else None


def _read_payload(found: dict[str, Any]) -> Payload:
    data = _unbase64(found["base64"]) if "base64" in found else _canonical(found["value"])
    return Payload(data, _number(found["score"]), Recorded(found.get("calls", "")))


def _of(kind: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, kind):  # type: ignore[arg-type]
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _number(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _whole(value: Any, least: int) -> int:
    if not is_whole(value, least, LARGEST):
        raise ValueError(f"{value!r} is no whole number from {least} on")
    return value
