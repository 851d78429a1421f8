"""``stats``: counts of all ordered queues, or of one, and of nodes and lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import command, json_option, table, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import OverviewJson, ShardsJson
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.text import count_of, duration, escaped
from celery_lowkiq.rules.views import Rates, ShardReport, Stats

COUNTS = ("length", "calls", "fresh", "retries", "paused_ids", "busy", "morgue_length")
AMOUNTS = ("queue", ">length", ">calls", ">fresh", ">retries", ">paused", ">busy", ">morgue", ">lag")
HEADER = (*AMOUNTS, ">processed", ">processed/s", ">failed", ">failed/s", "state")
#: The row of a queue whose counts cannot be read, between its name and the last cell.
UNKNOWN = ("-",) * (len(HEADER) - 2)
#: The table of shards.
SHARDS = ("queue", ">shard", "owner", ">waiting", ">running", ">lag", ">jobs/min", "state")
EXAMPLES = ["stats", "stats sync_order --json", "stats --watch 1", "stats sync_order --shards"]


@command("Counts of all queues, or of one.", EXAMPLES)
@click.argument("queue", required=False)
@click.option("--shards", is_flag=True, help="The shards, those with the most load first.")
@click.option("--watch", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Repeat at this interval.")
@json_option
def stats(inspector: Inspector, queue: str | None, shards: bool, watch: float | None, json_: bool) -> None:
    """Counts of all ordered queues and their sum, or of one QUEUE; how many nodes and lanes there are.

    length: waiting jobs; calls: the calls in these, of which equal ones were merged; fresh, retries: jobs
    that never failed, and the others; paused: paused ids, with or without a job; busy: being processed;
    morgue: dead jobs; lag: how long the oldest due job has waited; processed, failed: how many ever;
    processed/s, failed/s: a second, over the last minute; state: moving to another number of shards, paused
    shards, ids held by a dead payload, damaged, or shards that are in no count since their master is away or
    denies the user a right. The ids with the most waiting calls follow.

    With --shards, sorted by lag, then by jobs: jobs/min: processed a minute, over the last one to two minutes
    (-: not known yet); state: paused, moving (jobs that a migration has to sort), silent (the owner did not
    report in time), or the master that is away or denies a right. `doctor` says whether more shards would
    help.

    A queue with a damaged shard is shown without counts, and its error on stderr. On a cluster, stderr also
    names the masters that are away or deny the user a right, and their shards. Status 1 then.
    """
    names = None if queue is None else [queue]
    read = partial(inspector.shards_json if shards else inspector.overview_json, names)
    if watch is None:
        found = read()
        _show(found, json_)
        if found.damaged or found.away or found.denied:
            raise click.exceptions.Exit(FAILED)
    else:
        _watch(read, watch, json_)


def _watch(read: Callable[[], OverviewJson | ShardsJson], seconds: float, json_: bool) -> None:
    pause = threading.Event()
    try:
        while True:
            try:
                found = read()
            except StoreUnavailable as error:
                write_text(escaped(str(error)), err=True)
            else:
                if not json_:
                    click.clear()
                _show(found, json_)
            pause.wait(seconds)
    except KeyboardInterrupt:
        pass


def _row(
    name: str, shards: int, counts: Stats, speed: Rates | None, missing: str, former: int | None = None
) -> list[str]:
    numbers = [str(getattr(counts, name)) for name in COUNTS]
    processed = [str(counts.processed), f"{speed.processed:.1f}" if speed else "-"]
    failed = [str(counts.failed), f"{speed.failed:.1f}" if speed else "-"]
    states = [f"moving {former}>{shards}"] if former else []
    states += [f"{counts.paused} of {shards} shards paused"] if counts.paused else []
    states += [f"{count_of(counts.held, 'id')} held"] if counts.held else []
    states += [f"{counts.missing} of {shards} shards {missing}"] if counts.missing else []
    if counts.missing == shards:
        return [name, *UNKNOWN, ", ".join(states)]
    return [name, *numbers, duration(counts.lag), *processed, *failed, ", ".join(states)]


def _show(found: OverviewJson | ShardsJson, json_: bool) -> None:
    if json_:
        write_json(found)
        return
    write_text(_shards_text(found) if isinstance(found, ShardsJson) else _queues_text(found))
    for error in found.damaged.values():
        write_text(escaped(error), err=True)
    for master, lost in found.away.items():
        write_text(escaped(f"{master} {_reason(master, found.denied)}: nothing here counts {lost}"), err=True)
    for error in found.denied.values():
        write_text(escaped(error), err=True)


def _reason(master: str, denied: Mapping[str, str]) -> str:
    return "denies a right" if master in denied else "is away"


def _queues_text(found: OverviewJson) -> str:
    missing = "unknown" if found.denied else "away"
    rows = [
        _row(one.name, one.shards, one.stats, one.rates, missing, one.former_shards) for one in found.queues
    ]
    rows += [[name, *UNKNOWN, "damaged"] for name in found.damaged]
    total = _row("total", sum(one.shards for one in found.queues), found.total, found.rates, missing)
    if found.nodes is None or found.lanes is None:
        why = "is away or denies a right" if found.denied else "is away"
        nodes = f"Nodes are unknown: the master with their reports {why}"
    else:
        lanes = f"{count_of(found.lanes, 'lane')}, {found.lanes_busy} of them busy"
        nodes = f"{count_of(found.nodes, 'node')}, {lanes}"
    text = table(HEADER, [*rows, total] if len(rows) != 1 else rows)
    return "\n".join([text, "", *_busiest(found.total), nodes])


def _busiest(total: Stats) -> list[str]:
    if not total.busiest:
        return []
    ids = ", ".join(f"{found.calls:,} of {found.queue} {found.id}" for found in total.busiest)
    return [escaped(f"Most waiting calls: {ids}; the oldest call waits for {duration(total.oldest_call)}")]


def _shards_text(found: ShardsJson) -> str:
    return table(
        SHARDS,
        [_shard_row(queue.name, shard, found.denied) for queue in found.queues for shard in queue.shards],
    )


def _shard_row(queue: str, shard: ShardReport, denied: Mapping[str, str]) -> list[str]:
    stats = shard.stats
    if shard.away is not None:
        state = f"{shard.away} {_reason(shard.away, denied)}"
        return [queue, str(shard.index), *("-",) * (len(SHARDS) - 3), state]
    per_minute = "-" if shard.jobs_per_minute is None else f"{shard.jobs_per_minute:.1f}"
    states = ["paused"] if shard.paused_since is not None else []
    states += [f"moving {shard.moving}"] if shard.moving else []
    states += ["silent"] if shard.owner and shard.alive is False else []
    counts = str(stats.length), str(stats.busy), duration(stats.lag), per_minute
    return [queue, str(shard.index), shard.owner or "none", *counts, ", ".join(states)]
