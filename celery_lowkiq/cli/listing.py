"""Listings: read page by page, written as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import click

from celery_lowkiq.rules.views import Page

from .output import table, write_json
from .params import Time, absolute

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: Jobs of a page, and so many rows of a table get their widths together.
PAGE = 100
#: Payloads of a job in a listing for programs; its payload_count says how many there are.
PAYLOADS = 10


def listing_options(function: F) -> F:
    """The options of a listing: --reverse, --from, --prefix, --limit."""
    for option in (
        click.option(
            "--limit", default=100, show_default=True, help="At most so many; 0: all.", type=click.IntRange(0)
        ),
        click.option("--prefix", default="", help="Ids that begin so; with --by id."),
        click.option("--from", "from_", type=Time(), help="Begin at this time, or number."),
        click.option("--reverse", is_flag=True, help="From the largest down."),
    ):
        function = option(function)
    return function


def bounds(from_: Any, reverse: bool) -> dict[str, Any]:
    """What --from means to a listing."""
    if from_ is None:
        return {}
    return {"maximum" if reverse else "minimum": absolute(from_)}


def pages(read: Callable[..., Page[T]], **options: Any) -> Iterator[T]:
    """All items, a page at a time."""
    after: str | None = None
    while True:
        page = read(after=after, limit=PAGE, **options)
        yield from page.items
        if page.next is None:
            return
        after = page.next


def write_listing(
    found: Iterator[T],
    limit: int,
    header: Sequence[str],
    row: Callable[[T], Sequence[str]],
    fields: Callable[[T], dict[str, Any]] | None,
) -> None:
    """Lines of JSON when there are ``fields``, else a table; it says on stderr when there is more."""
    shown = islice(found, limit) if limit else found
    if fields is not None:
        for item in shown:
            write_json(fields(item))
        return
    first = True
    while part := list(islice(shown, PAGE)):
        text = table(header, map(row, part))
        click.echo(text if first else text.partition("\n")[2])
        first = False
    if first:
        click.echo("none", err=True)
    elif limit and next(found, None) is not None:
        click.echo(f"there are more than {limit}: see --limit", err=True)
