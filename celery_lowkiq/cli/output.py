"""What commands write to stdout: a table or lines for people, JSON for programs."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

import click
from kombu.utils.json import JSONEncoder

from celery_lowkiq.integration.operations.queue import ShownDeadJob, ShownJob, ShownPayload
from celery_lowkiq.rules.text import duration, error_line, escaped, shortened, within_lists

#: As much of a payload or an error is shown in a table.
CELL = 60
#: As much of a payload that is no JSON.
LONGEST_REPR = 10_000
#: What an encoder raises for keys that JSON lacks, circles and numbers as NaN, and depths.
UNWRITABLE = (TypeError, ValueError, RecursionError)


class _Encoder(JSONEncoder):
    """Writes what some other serializer has read as its ``repr``."""

    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return _repr(o)


def as_json(value: Any) -> str:
    """One line of JSON; what is not printable is escaped. Raises what UNWRITABLE has."""
    text = _Encoder(ensure_ascii=False, allow_nan=False).encode(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(char: str) -> str:
    """Only within a text can such a character stand."""
    return json.dumps(char)[1:-1]


def writable(value: Any) -> Any:
    """The value, or its ``repr`` when it is no JSON."""
    try:
        as_json(within_lists(value))
    except UNWRITABLE:
        return _repr(value)
    return value


def _repr(value: Any) -> str:
    """The beginning of it."""
    try:
        return shortened(repr(value), LONGEST_REPR)
    except Exception as error:  # noqa: BLE001 - its class is not ours
        return f"<{type(value).__name__} without a repr: {type(error).__name__}>"


def write_json(value: Any) -> None:
    """One JSON document, or one line of a listing."""
    click.echo(as_json(value))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns under their names; one whose name begins with ``>`` holds numbers, which end at the right."""
    names = [name.lstrip(">") for name in header]
    lines = [[escaped(cell) for cell in row] for row in (names, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def padded(cell: str, column: int) -> str:
        pad = cell.rjust if header[column].startswith(">") else cell.ljust
        return pad(widths[column])

    return "\n".join(
        "  ".join(padded(cell, column) for column, cell in enumerate(line)).rstrip() for line in lines
    )


def count_of(count: int, word: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def clock_time(when: float) -> str:
    """A Unix time as people read it, in UTC; as a number where there is no such date."""
    try:
        return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{when:g}"


def relative(when: float, now: float) -> str:
    """A Unix time as seen from now: ``in 3.1 h``, or ``40 s ago``."""
    return f"in {duration(when - now)}" if when > now else f"{duration(now - when)} ago"


def payload_text(payload: ShownPayload, width: int | None = CELL) -> str:
    """A payload on one line."""
    text = value_text(payload.value) if payload.readable else repr(payload.value)
    return escaped(text if width is None else shortened(text, width))


def value_text(value: Any) -> str:
    """A value as JSON, or its ``repr``."""
    try:
        return as_json(value)
    except UNWRITABLE:
        return _repr(value)


def payload_json(payload: ShownPayload) -> dict[str, Any]:
    """A payload for programs: what is no JSON as its ``repr``, and bytes that no codec reads as base64."""
    score = _finite(payload.score)
    if payload.readable:
        return {"score": score, "value": writable(payload.value)}
    return {"score": score, "base64": base64.b64encode(payload.value).decode()}


def _finite(value: Any) -> Any:
    """JSON has no other numbers."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def first_payload(payloads: Sequence[ShownPayload]) -> str:
    """The one with the smallest score, cut for a table."""
    return payload_text(payloads[0]) if payloads else ""


def cell(text: str) -> str:
    """A text, cut for a table."""
    return shortened(text, CELL)


def error_text(error: str | None) -> str:
    """What an error says, cut for a table."""
    return cell(error_line(error or ""))


def job_json(job: ShownJob | ShownDeadJob) -> dict[str, Any]:
    """A job for programs: its fields by their names."""
    shown = {field.name: _finite(getattr(job, field.name)) for field in fields(job)}
    return shown | {"payloads": [payload_json(payload) for payload in job.payloads]}
