"""``stats``: counts of all ordered queues, or of one; and who works."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import click

from celery_lowkiq.integration.operations.inspector import Console
from celery_lowkiq.rules.errors import ShardDamaged, StoreUnavailable
from celery_lowkiq.rules.history import Rates, rates
from celery_lowkiq.rules.reports import NodeReport
from celery_lowkiq.rules.text import duration, escaped
from celery_lowkiq.rules.views import Stats

from ..main import FAILED
from ..output import count_of, table, write_json
from ..params import command, json_option

COUNTS = ("length", "fresh", "retries", "held", "busy", "morgue_length")
AMOUNTS = ("queue", ">length", ">fresh", ">retries", ">held", ">busy", ">morgue", ">lag")
HEADER = (*AMOUNTS, ">processed", ">/s", ">failed", ">/s", "paused")
#: The row of a queue whose counts cannot be read, between its name and the last cell.
UNKNOWN = ("-",) * (len(HEADER) - 2)


@dataclass(frozen=True)
class _Line:
    """Counts of a queue, or of all together."""

    name: str
    shards: int
    counts: Stats
    rates: Rates | None

    def row(self) -> list[str]:
        """For people."""
        counts, speed = self.counts, self.rates
        numbers = [str(getattr(counts, name)) for name in COUNTS]
        processed = [str(counts.processed), f"{speed.processed:.1f}" if speed else "-"]
        failed = [str(counts.failed), f"{speed.failed:.1f}" if speed else "-"]
        paused = f"{counts.paused} of {self.shards} shards" if counts.paused else ""
        return [self.name, *numbers, duration(counts.lag), *processed, *failed, paused]

    def fields(self) -> dict[str, object]:
        """For programs."""
        return {
            **asdict(self.counts),
            "shards": self.shards,
            "rates": asdict(self.rates) if self.rates else None,
        }


@dataclass(frozen=True)
class _Picture:
    """What one look has found."""

    queues: Sequence[_Line]
    total: _Line
    workers: Mapping[str, int]
    damaged: Mapping[str, ShardDamaged] = field(default_factory=dict)


@command("Counts of all queues, or of one.", ["stats", "stats sync_order --json", "stats --watch 1"])
@click.argument("queue", required=False)
@click.option("--watch", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Again and again.")
@json_option
def stats(console: Console, queue: str | None, watch: float | None, json_: bool) -> None:
    """Counts of all ordered queues and their sum, or of one QUEUE; how many nodes and lanes there are.

    length: waiting jobs; fresh, retries: those that never failed, and the others; held: those whose ids are
    paused; busy: being processed; morgue: dead jobs; lag: how long the oldest due job has waited; processed,
    failed: how many ever; /s: a second, over the last minute.

    A queue with a damaged shard is shown without counts, and its error on stderr. Status 1 then.
    """
    names = None if queue is None else [queue]
    if watch is None:
        found = _look(console, names)
        _show(found, json_)
        if found.damaged:
            raise click.exceptions.Exit(FAILED)
    else:
        _watch(console, names, watch, json_)


def _watch(console: Console, names: list[str] | None, seconds: float, json_: bool) -> None:
    pause = threading.Event()
    try:
        while True:
            try:
                found = _look(console, names)
            except StoreUnavailable as error:
                click.echo(escaped(str(error)), err=True)
            else:
                if not json_:
                    click.clear()
                _show(found, json_)
            pause.wait(seconds)
    except KeyboardInterrupt:
        """The usual end."""


def _look(console: Console, names: list[str] | None) -> _Picture:
    overview, past, now = console.overview(names), console.history(names), time.time()
    lines = [
        _Line(name, overview.shards[name], counts, rates(past.by_queue[name], now))
        for name, counts in overview.by_queue.items()
    ]
    total = _Line("total", sum(line.shards for line in lines), overview.total, rates(past.total, now))
    return _Picture(lines, total, _workers(console.nodes()), overview.damaged)


def _workers(nodes: Sequence[NodeReport]) -> dict[str, int]:
    lanes = [lane for node in nodes if node.alive for lane in node.lanes]
    busy = sum(lane.running is not None for lane in lanes)
    return {"nodes": sum(node.alive for node in nodes), "lanes": len(lanes), "lanes_busy": busy}


def _show(found: _Picture, json_: bool) -> None:
    if json_:
        queues = {line.name: line.fields() for line in found.queues}
        damaged = {name: {"error": str(error)} for name, error in found.damaged.items()}
        write_json({"queues": queues | damaged, "total": found.total.fields(), **found.workers})
        return
    rows = [line.row() for line in found.queues]
    rows += [[name, *UNKNOWN, "damaged"] for name in found.damaged]
    click.echo(table(HEADER, [*rows, found.total.row()] if len(rows) != 1 else rows))
    nodes, lanes, busy = found.workers.values()
    click.echo(f"\n{count_of(nodes, 'node')}, {count_of(lanes, 'lane')}, {busy} of them busy")
    for error in found.damaged.values():
        click.echo(escaped(str(error)), err=True)
