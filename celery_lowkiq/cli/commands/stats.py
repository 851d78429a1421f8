"""``stats``: counts of all ordered queues, or of one."""

from __future__ import annotations

import threading
from dataclasses import asdict

import click

from celery_lowkiq.integration.console import Console, Overview
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import Stats
from celery_lowkiq.rules.words import duration, escaped

from ..output import table, write_json
from ..params import command, json_option

HEADER = ("queue", ">length", ">fresh", ">retries", ">busy", ">morgue", ">lag", ">processed", ">failed")


@command("Counts of all queues, or of one.", ["stats", "stats sync_order --json", "stats --watch 1"])
@click.argument("queue", required=False)
@click.option("--watch", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Again and again.")
@json_option
def stats(console: Console, queue: str | None, watch: float | None, json_: bool) -> None:
    """Counts of all ordered queues and their sum, or of one QUEUE.

    length: waiting jobs, fresh ones and retries; busy: being processed; morgue: dead jobs; lag: how long the
    oldest due job has waited; processed, failed: how many ever.
    """
    names = None if queue is None else [queue]
    if watch is None:
        _show(console.overview(names), json_)
    else:
        _watch(console, names, watch, json_)


def _watch(console: Console, names: list[str] | None, seconds: float, json_: bool) -> None:
    pause = threading.Event()
    try:
        while True:
            try:
                found = console.overview(names)
            except StoreUnavailable as error:
                click.echo(escaped(str(error)), err=True)
            else:
                if not json_:
                    click.clear()
                _show(found, json_)
            pause.wait(seconds)
    except KeyboardInterrupt:
        """The usual end."""


def _show(overview: Overview, json_: bool) -> None:
    if json_:
        queues = {name: asdict(counts) for name, counts in overview.by_queue.items()}
        write_json({"queues": queues, "total": asdict(overview.total)})
        return
    rows = [_row(name, counts) for name, counts in overview.by_queue.items()]
    if len(rows) != 1:
        rows.append(_row("total", overview.total))
    click.echo(table(HEADER, rows))


def _row(name: str, counts: Stats) -> list[str]:
    numbers = [counts.length, counts.fresh, counts.retries, counts.busy, counts.morgue_length]
    return [name, *map(str, numbers), duration(counts.lag), str(counts.processed), str(counts.failed)]
