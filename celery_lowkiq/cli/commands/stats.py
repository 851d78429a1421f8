"""``stats``: counts of all ordered queues, or of one, and of nodes and lanes."""

from __future__ import annotations

import threading

import click

from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.integration.operations.json_records import OverviewJson
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.history import Rates
from celery_lowkiq.rules.text import count_of, duration, escaped
from celery_lowkiq.rules.views import Stats

from ..main import FAILED
from ..output import table, write_json
from ..params import command, json_option

COUNTS = ("length", "fresh", "retries", "paused_jobs", "busy", "morgue_length")
AMOUNTS = ("queue", ">length", ">fresh", ">retries", ">paused", ">busy", ">morgue", ">lag")
HEADER = (*AMOUNTS, ">processed", ">processed/s", ">failed", ">failed/s", "state")
#: The row of a queue whose counts cannot be read, between its name and the last cell.
UNKNOWN = ("-",) * (len(HEADER) - 2)


@command("Counts of all queues, or of one.", ["stats", "stats sync_order --json", "stats --watch 1"])
@click.argument("queue", required=False)
@click.option("--watch", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Repeat at this interval.")
@json_option
def stats(inspector: Inspector, queue: str | None, watch: float | None, json_: bool) -> None:
    """Counts of all ordered queues and their sum, or of one QUEUE; how many nodes and lanes there are.

    length: waiting jobs; fresh, retries: those that never failed, and the others; paused: those whose ids are
    paused; busy: being processed; morgue: dead jobs; lag: how long the oldest due job has waited; processed,
    failed: how many ever; processed/s, failed/s: a second, over the last minute; state: paused shards, or
    damaged.

    A queue with a damaged shard is shown without counts, and its error on stderr. Status 1 then.
    """
    names = None if queue is None else [queue]
    if watch is None:
        found = inspector.overview_json(names)
        _show(found, json_)
        if found.damaged:
            raise click.exceptions.Exit(FAILED)
    else:
        _watch(inspector, names, watch, json_)


def _watch(inspector: Inspector, names: list[str] | None, seconds: float, json_: bool) -> None:
    pause = threading.Event()
    try:
        while True:
            try:
                found = inspector.overview_json(names)
            except StoreUnavailable as error:
                click.echo(escaped(str(error)), err=True)
            else:
                if not json_:
                    click.clear()
                _show(found, json_)
            pause.wait(seconds)
    except KeyboardInterrupt:
        pass


def _row(name: str, shards: int, counts: Stats, speed: Rates | None) -> list[str]:
    numbers = [str(getattr(counts, name)) for name in COUNTS]
    processed = [str(counts.processed), f"{speed.processed:.1f}" if speed else "-"]
    failed = [str(counts.failed), f"{speed.failed:.1f}" if speed else "-"]
    paused = f"{counts.paused} of {shards} shards paused" if counts.paused else ""
    return [name, *numbers, duration(counts.lag), *processed, *failed, paused]


def _show(found: OverviewJson, json_: bool) -> None:
    if json_:
        write_json(found)
        return
    rows = [_row(one.name, one.shards, one.stats, one.rates) for one in found.queues]
    rows += [[name, *UNKNOWN, "damaged"] for name in found.damaged]
    total = _row("total", sum(one.shards for one in found.queues), found.total, found.rates)
    click.echo(table(HEADER, [*rows, total] if len(rows) != 1 else rows))
    nodes, lanes = count_of(found.nodes, "node"), count_of(found.lanes, "lane")
    click.echo(f"\n{nodes}, {lanes}, {found.lanes_busy} of them busy")
    for error in found.damaged.values():
        click.echo(escaped(error), err=True)
