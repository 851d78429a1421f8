"""Output and parameters of commands."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, TypeVar

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import ShownPayload, encode, value_text
from celery_lowkiq.integration.tracking import Tracker
from celery_lowkiq.rules.errors import UnknownTracker
from celery_lowkiq.rules.text import escaped, lacking, last_error_line, shortened

# Output of commands: a table or lines for people, JSON for programs.

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
    lines = [names, *([escaped(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    pads = [str.rjust if name.startswith(">") else str.ljust for name in header]
    return "\n".join(
        "  ".join([pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=True)]).rstrip()
        for line in lines
    )


#: Names of columns, as :func:`table` takes them, with the functions that return the cell of an item.
Columns: TypeAlias = "Mapping[str, Callable[[Any], str]]"


def table_of(columns: Columns, items: Iterable[Any]) -> str:
    """A row of each item."""
    return table(list(columns), ([text(one) for text in columns.values()] for one in items))


def end_listing(unreachable: Mapping[str, str]) -> None:
    """Say on stderr which shards a listing lacks, by the address of their master; exit with status 1 then."""
    for sentence in lacking(unreachable):
        write_text(escaped(sentence), err=True)
    if unreachable:
        raise click.exceptions.Exit(FAILED)


def payload_text(payload: ShownPayload, width: int | None = CELL) -> str:
    """A payload on one line."""
    text = value_text(payload.value) if payload.readable else repr(payload.value)
    return escaped(text if width is None else shortened(text, width))


def first_payload(payloads: Sequence[ShownPayload]) -> str:
    """The payload with the smallest score, cut for a table."""
    return payload_text(payloads[0]) if payloads else ""


def cell(text: str) -> str:
    """A text, cut for a table."""
    return shortened(text, CELL)


def error_text(error: str | None) -> str:
    """Return the text of an error, cut for a table."""
    return cell(last_error_line(error or ""))


# Arguments and options of commands, and the decorator that makes a command.

F = TypeVar("F", bound=Callable[..., Any])

#: A Unix time in s, a date, or a span from now.
When: TypeAlias = "float | datetime | timedelta"

if TYPE_CHECKING:
    # Generic since Click 8.4.
    ParamType = click.ParamType[When]
else:
    ParamType = click.ParamType

_SPAN = re.compile(r"([-+])(\d+(?:\.\d+)?)(s|m|min|h|d)")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
#: Argument for ids, or a payload, from stdin.
STDIN = "-"


class Time(ParamType):
    """A point in time on the command line."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        """Read a time. Ends with status 2 for an invalid text."""
        if value == "now":
            return timedelta(0)
        if span := _SPAN.fullmatch(value):
            seconds = float(span.group(2)) * _UNITS[span.group(3)]
            try:
                return timedelta(seconds=-seconds if span.group(1) == "-" else seconds)
            except OverflowError:
                self.fail(f"{value!r} is longer than any time", param, ctx)
        try:
            return float(value)
        except ValueError:
            pass
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            self.fail(
                f"{value!r} is invalid: expected now, +90s, -5m, +3h, +2d, a Unix time in s, "
                "or a date like 2031-01-31T12:00:00",
                param,
                ctx,
            )


def absolute(when: When) -> float | datetime:
    """Return the time with a span added to now."""
    return time.time() + when.total_seconds() if isinstance(when, timedelta) else when


def command(short: str, examples: Sequence[str]) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command with a short help and examples.

    Its function gets the Inspector, and the full name of the queue.
    """
    lines = "\n".join(f"  celery -A proj lowkiq {example}" for example in examples)

    def made(function: Callable[..., None]) -> click.Command:
        @wraps(function)
        def with_inspector(**given: Any) -> None:
            inspector = Inspector(click.get_current_context().obj.app)
            if given.get("queue"):
                given["queue"] = inspector.queue(given["queue"]).name
            function(inspector, **given)

        return click.command(short_help=short, epilog=f"\b\nExamples:\n{lines}\n")(with_inspector)

    return made


def queue_argument(function: F) -> F:
    return click.argument("queue", metavar="QUEUE")(function)


def json_option(function: F) -> F:
    return click.option("--json", "json_", is_flag=True, help="For programs: JSON, times in Unix s.")(
        function
    )


def yes_option(function: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for a confirmation.")(function)


def reason_option(function: F) -> F:
    return click.option("--reason", default="", help="Why, for the audit log.")(function)


def ids_argument(function: F) -> F:
    return click.argument("ids", metavar="[IDS]...", nargs=-1)(function)


def each_id(ids: Sequence[str]) -> Iterator[str]:
    """Yield the ids; ``-`` reads them from stdin, one per line."""
    if tuple(ids) != (STDIN,):
        yield from ids
        return
    for line in stdin():
        if job_id := line.rstrip("\r\n"):
            yield job_id


def find_tracker(inspector: Inspector, tracker_id: str) -> Tracker:
    """Return a tracker. Ends with status 1 for an unknown one."""
    try:
        return inspector.tracker(tracker_id)
    except UnknownTracker as error:
        write_text(escaped(str(error)), err=True)
        raise click.exceptions.Exit(FAILED) from error


def stdin() -> TextIO:
    """Return the standard input. Ends with status 2 when it is closed."""
    if sys.stdin is None:
        raise click.UsageError("stdin is closed: there is nothing to read")
    return sys.stdin


@contextmanager
def binding(host: str, port: int, option: str = "--port") -> Iterator[None]:
    """End the command with status 1 when the port cannot be bound."""
    try:
        yield
    except OSError as error:
        words = f"{option} {port} on {host} cannot be had: {error.strerror or error}"
        raise click.ClickException(words) from error
