"""Listings, read page by page and written as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import click

from celery_lowkiq.cli.output import (
    Time,
    absolute,
    command,
    end_listing,
    json_option,
    queue_argument,
    table,
    write_json,
    write_text,
)
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.views import all_items

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: Items of a page, and rows of a table with common column widths.
PAGE = 100
#: Maximum number of payloads that are read of a job.
PAYLOADS = 10


def listing_options(function: F) -> F:
    """The options of a listing: --reverse, --from, --prefix, --limit."""
    for option in (
        click.option(
            "--limit",
            default=100,
            show_default=True,
            help="Maximum number of lines; 0: all.",
            type=click.IntRange(0),
        ),
        click.option("--prefix", default="", help="Ids with this prefix."),
        click.option("--from", "from_", type=Time(), help="Begin at this time, or number."),
        click.option("--reverse", is_flag=True, help="Sort in descending order."),
    ):
        function = option(function)
    return function


def bounds(from_: Any, reverse: bool) -> dict[str, Any]:
    """Return the bound that --from sets."""
    if from_ is None:
        return {}
    return {"maximum" if reverse else "minimum": absolute(from_)}


def write_listing(
    found: Iterator[T],
    limit: int,
    header: Sequence[str],
    row: Callable[[T], Sequence[str]],
    json_: bool,
) -> None:
    """Write a table, or with ``json_`` lines of JSON. Stderr says when there is more than a table."""
    shown = islice(found, limit) if limit else found
    if json_:
        for item in shown:
            write_json(item)
        return
    first = True
    while part := list(islice(shown, PAGE)):
        text = table(header, map(row, part))
        write_text(text if first else text.partition("\n")[2])
        first = False
    if first:
        write_text("none", err=True)
    elif limit and next(found, None) is not None:
        write_text(f"there are more than {limit}: see --limit", err=True)


def listing_command(
    name: str,
    short: str,
    text: str,
    examples: Sequence[str],
    sorts: Sequence[str],
    columns: Mapping[str, Callable[[Any], str]],
) -> click.Command:
    """A command that lists jobs: ``name`` is the method of the queue that reads them."""

    def run(
        inspector: Inspector,
        queue: str,
        by: str,
        from_: Any,
        reverse: bool,
        prefix: str,
        limit: int,
        json_: bool,
    ) -> None:
        ordered = inspector.queue(queue)
        read = getattr(ordered.raw(decoded=True) if json_ else ordered, name)
        options: dict[str, Any] = {"by": by, "prefix": prefix, "reverse": reverse, **bounds(from_, reverse)}
        away: dict[str, str] = {}
        found = all_items(read, away, limit=PAGE, payload_limit=PAYLOADS, **options)
        write_listing(
            found, limit, list(columns), lambda job: [cell(job) for cell in columns.values()], json_
        )
        end_listing(away)

    run.__doc__ = text
    by = click.option("--by", type=click.Choice(sorts), default=sorts[0], show_default=True)
    return command(short, examples)(queue_argument(by(listing_options(json_option(run)))))
