"""Output of commands: a table or lines for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from celery_lowkiq.integration.operations.json_records import encode, value_text
from celery_lowkiq.integration.operations.shown_jobs import ShownPayload
from celery_lowkiq.rules.text import escaped, lacking, last_error_line, shortened

from .main import FAILED

#: Longest payload or error in a table, in characters.
CELL = 60


def write_text(text: str, err: bool = False) -> None:
    """Write lines, the only way in which commands do. What could control a terminal is escaped.

    A value of foreign data is escaped by itself, too, so that it cannot forge a line.
    """
    click.echo("\n".join(map(escaped, text.split("\n"))), err=err)


def write_json(value: Any) -> None:
    """Write a record as one line."""
    write_text(encode(value))


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


def end_listing(away: Mapping[str, str]) -> None:
    """Say on stderr which shards a listing lacks, by the address of their master; exit with status 1 then."""
    for sentence in lacking(away):
        write_text(escaped(sentence), err=True)
    if away:
        raise click.exceptions.Exit(FAILED)


def payload_text(payload: ShownPayload, width: int | None = CELL) -> str:
    """A payload on one line."""
    text = value_text(payload.value) if payload.readable else repr(payload.value)
    return escaped(text if width is None else shortened(text, width))


def first_payload(payloads: Sequence[ShownPayload]) -> str:
    """The one with the smallest score, cut for a table."""
    return payload_text(payloads[0]) if payloads else ""


def cell(text: str) -> str:
    """A text, cut for a table."""
    return shortened(text, CELL)


def error_text(error: str | None) -> str:
    """What an error says, cut for a table."""
    return cell(last_error_line(error or ""))
