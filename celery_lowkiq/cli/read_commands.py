"""Commands that read."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import (
    Columns,
    Time,
    absolute,
    cell,
    command,
    end_listing,
    error_text,
    find_tracker,
    first_payload,
    json_option,
    payload_text,
    queue_argument,
    table,
    table_of,
    write_json,
    write_text,
)
from celery_lowkiq.integration.audit import Audit, line_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import (
    OverviewJson,
    PlacesJson,
    ShardsJson,
    ShownDeadJob,
    ShownJob,
    value_text,
)
from celery_lowkiq.integration.queue import FailureGroup, Failures, OrderedQueue
from celery_lowkiq.integration.reads import ID, QUEUE, READS, Findings, Nodes, Read
from celery_lowkiq.integration.tracking import Tracker
from celery_lowkiq.rules.diagnosis import Why
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.health import expected
from celery_lowkiq.rules.text import count_of, duration, escaped, format_job_ids, moment, relative, size
from celery_lowkiq.rules.topology import Kind, Master, Topology
from celery_lowkiq.rules.tracking import State, TrackedCall, TrackerView
from celery_lowkiq.rules.views import (
    ERROR,
    HeldId,
    LaneReport,
    NodeReport,
    Paused,
    Rates,
    ShardReport,
    Stats,
    all_items,
)

# Listings, read page by page and written as they come.

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


def write_listing(found: Iterator[Any], limit: int, columns: Columns, json_: bool) -> None:
    """Write a table, or with ``json_`` lines of JSON. Stderr says when there is more than a table."""
    shown = islice(found, limit) if 0 < limit < sys.maxsize else found
    if json_:
        for item in shown:
            write_json(item)
        return
    first = True
    while part := list(islice(shown, PAGE)):
        text = table_of(columns, part)
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
    columns: Columns,
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
        unreachable: dict[str, str] = {}
        found = all_items(read, unreachable, limit=PAGE, payload_limit=PAYLOADS, **options)
        write_listing(found, limit, columns, json_)
        end_listing(unreachable)

    run.__doc__ = text
    by = click.option("--by", type=click.Choice(sorts), default=sorts[0], show_default=True)
    return command(short, examples)(queue_argument(by(listing_options(json_option(run)))))


# A command that shows the record of a read.

READ = {read.name: read for read in READS}
ARGUMENTS: dict[str, Callable[[Any], Any]] = {"queue": queue_argument, "id": click.argument("id")}


def record_command(
    read: Read,
    short: str,
    text: str,
    examples: Sequence[str],
    write: Callable[[Any], None],
    failed: Callable[[Any], bool] = lambda _: False,
    records: Callable[[Any], Iterable[Any]] = lambda found: [found],
) -> click.Command:
    """A command that writes the record of a read for people, or each of its ``records`` as a line of JSON.

    Status 1 when the read has ``failed``.
    """

    def run(inspector: Inspector, json_: bool, queue: str | None = None, **given: Any) -> None:
        of = inspector if queue is None else inspector.queue(queue)
        found = read.run(of.raw(decoded=True) if json_ and isinstance(of, OrderedQueue) else of, **given)
        if json_:
            for one in records(found):
                write_json(one)
        else:
            write(found)
        if failed(found):
            raise click.exceptions.Exit(FAILED)

    run.__doc__ = text
    made = json_option(run)
    for one in reversed(read.parameters):
        made = ARGUMENTS[one.name](made)
    return command(short, examples)(made)


def write_lines(found: Iterable[tuple[Any, str]], json_: bool) -> None:
    """Write records as JSON, or the texts beside them."""
    empty = True
    for record, text in found:
        empty = False
        if json_:
            write_json(record)
        else:
            write_text(text)
    if empty:
        write_text("[]" if json_ else "none", err=not json_)


# ``stats``: counts of all ordered queues, or of one, and of nodes and lanes.

#: Columns of counts, with the fields of Stats that they show.
COUNTS = {
    ">length": "length",
    ">calls": "calls",
    ">fresh": "fresh",
    ">retries": "retries",
    ">paused": "paused_ids",
    ">busy": "busy",
    ">morgue": "morgue_length",
}
QUEUES = ("queue", *COUNTS, ">lag", ">processed", ">processed/s", ">failed", ">failed/s", "state")
#: The row of a queue whose counts cannot be read, between its name and the last cell.
UNKNOWN = ("-",) * (len(QUEUES) - 2)
#: The table of shards.
SHARDS = ("queue", ">shard", "owner", ">waiting", ">running", ">lag", ">jobs/min", "state")
STATS_EXAMPLES = ["stats", "stats sync_order --json", "stats --watch 1", "stats sync_order --shards"]


def _at_most_a_day(_: click.Context, __: click.Parameter, seconds: float | None) -> float | None:
    # Not a number is neither smaller nor larger.
    if seconds is not None and not seconds <= 86_400:
        raise click.BadParameter(f"{seconds:g} is invalid: expected seconds, at most 86400")
    return seconds


@command("Counts of all queues, or of one.", STATS_EXAMPLES)
@click.argument("queue", required=False)
@click.option("--shards", is_flag=True, help="The shards, those with the most load first.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.05),
    metavar="SECONDS",
    help="Repeat at this interval.",
    callback=_at_most_a_day,
)
@json_option
def stats(inspector: Inspector, queue: str | None, shards: bool, watch: float | None, json_: bool) -> None:
    """Counts of all ordered queues and their sum, or of one QUEUE; how many nodes and lanes there are.

    length: waiting jobs; calls: the calls in these, of which equal ones were merged; fresh, retries: jobs
    that never failed, and the others; paused: paused ids, with or without a job; busy: being processed;
    morgue: dead jobs; lag: how long the oldest due job has waited; processed, failed: how many ever;
    processed/s, failed/s: a second, over the last minute; state: moving to another number of shards, paused
    shards, ids held by a dead payload, damaged, or shards that are in no count since their master is
    unreachable or denies the user a right. The ids with the most waiting calls follow.

    With --shards, sorted by lag, then by jobs: jobs/min: processed a minute, over the last one to two minutes
    (-: not known yet); state: paused, moving (jobs that a migration has to sort), silent (the owner did not
    report in time), or the master that is unreachable or denies a right. `doctor` says whether more shards
    would help.

    A queue with a damaged shard is shown without counts, and its error on stderr. On a cluster, stderr also
    names the masters that are unreachable or deny the user a right, and their shards. Status 1 then.
    """
    names = None if queue is None else [queue]
    read = partial(inspector.shards_json if shards else inspector.overview_json, names)
    if watch is None:
        found = read()
        _show_counts(found, json_)
        if found.damaged or found.unreachable or found.denied:
            raise click.exceptions.Exit(FAILED)
    else:
        _watch_counts(read, watch, json_)


def _watch_counts(read: Callable[[], OverviewJson | ShardsJson], seconds: float, json_: bool) -> None:
    pause = threading.Event()
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = read()
            except StoreUnavailable as error:
                write_text(escaped(str(error)), err=True)
            else:
                if not json_:
                    click.clear()
                _show_counts(found, json_)
            pause.wait(seconds)


def _queue_row(
    name: str, shards: int, counts: Stats, speed: Rates | None, missing: str, former: int | None = None
) -> list[str]:
    numbers = [str(getattr(counts, name)) for name in COUNTS.values()]
    processed = [str(counts.processed), f"{speed.processed:.1f}" if speed else "-"]
    failed = [str(counts.failed), f"{speed.failed:.1f}" if speed else "-"]
    states = [f"moving {former}>{shards}"] if former else []
    states += [f"{counts.paused} of {shards} shards paused"] if counts.paused else []
    states += [f"{count_of(counts.held, 'id')} held"] if counts.held else []
    states += [f"{counts.missing} of {shards} shards {missing}"] if counts.missing else []
    if counts.missing == shards:
        return [name, *UNKNOWN, ", ".join(states)]
    return [name, *numbers, duration(counts.lag), *processed, *failed, ", ".join(states)]


def _show_counts(found: OverviewJson | ShardsJson, json_: bool) -> None:
    if json_:
        write_json(found)
        return
    if isinstance(found, ShardsJson):
        shards = [(queue.name, shard) for queue in found.queues for shard in queue.shards]
        write_text(table(SHARDS, [_shard_row(*each, found.denied) for each in shards]))
    else:
        write_text(_queues_text(found))
    for error in found.damaged.values():
        write_text(escaped(error), err=True)
    for master, lost in found.unreachable.items():
        write_text(escaped(f"{master} {_reason(master, found.denied)}: nothing here counts {lost}"), err=True)
    for error in found.denied.values():
        write_text(escaped(error), err=True)


def _reason(master: str, denied: Mapping[str, str]) -> str:
    return "denies a right" if master in denied else "is unreachable"


def _queues_text(found: OverviewJson) -> str:
    missing = "unknown" if found.denied else "unreachable"
    rows = [
        _queue_row(one.name, one.shards, one.stats, one.rates, missing, one.former_shards)
        for one in found.queues
    ]
    rows += [[name, *UNKNOWN, "damaged"] for name in found.damaged]
    total = _queue_row("total", sum(one.shards for one in found.queues), found.total, found.rates, missing)
    if found.nodes is None or found.lanes is None:
        why = "is unreachable or denies a right" if found.denied else "is unreachable"
        nodes = f"Nodes are unknown: the master with their reports {why}"
    else:
        lanes = f"{count_of(found.lanes, 'lane')}, {found.lanes_busy} of them busy"
        nodes = f"{count_of(found.nodes, 'node')}, {lanes}"
    text = table(QUEUES, [*rows, total] if len(rows) != 1 else rows)
    return "\n".join([text, "", *_busiest(found.total), nodes])


def _busiest(total: Stats) -> list[str]:
    if not total.busiest:
        return []
    ids = ", ".join(f"{found.calls:,} of {found.queue} {found.id}" for found in total.busiest)
    return [escaped(f"Most waiting calls: {ids}; the oldest call waits for {duration(total.oldest_call)}")]


def _shard_row(queue: str, shard: ShardReport, denied: Mapping[str, str]) -> list[str]:
    stats = shard.stats
    if shard.unreachable is not None:
        state = f"{shard.unreachable} {_reason(shard.unreachable, denied)}"
        return [queue, str(shard.index), *("-",) * (len(SHARDS) - 3), state]
    per_minute = "-" if shard.jobs_per_minute is None else f"{shard.jobs_per_minute:.1f}"
    states = ["paused"] if shard.paused_since is not None else []
    states += [f"moving {shard.moving}"] if shard.moving else []
    states += ["silent"] if shard.owner and shard.alive is False else []
    counts = str(stats.length), str(stats.busy), duration(stats.lag), per_minute
    return [queue, str(shard.index), shard.owner or "none", *counts, ", ".join(states)]


# ``nodes``: the nodes, their lanes, and running jobs.

NODES = ("node", "state", ">seen", ">up", "lane", ">shards", "doing")


def _write_nodes(found: Nodes) -> None:
    if found.nodes:
        write_text(table(NODES, [row for node in found.nodes for row in _node_rows(node)]))
    else:
        write_text("none: does a worker with ordered queues run?", err=True)


def _node_rows(node: NodeReport) -> Iterator[list[str]]:
    """The name of the node is in the first row only."""
    up = node.seen_at - node.started_at
    first = [node.name, _node_state(node), f"{duration(node.silent)} ago", duration(up)]
    for number, lane in enumerate(node.lanes or (LaneReport("-", (), 0),)):
        yield [
            *(first if number == 0 else [""] * len(first)),
            lane.name,
            str(lane.shard_count),
            _run_text(lane),
        ]


def _node_state(node: NodeReport) -> str:
    if not node.alive:
        return "lost"
    if node.stopping:
        return "stopping"
    return "quiet" if node.quiet else "working"


def _run_text(lane: LaneReport) -> str:
    run = lane.running
    if run is None:
        return "nothing"
    overdue = f", overdue: {expected(run)}" if run.overdue else ""
    return f"{format_job_ids(run.ids, run.count)} of {run.shard} for {duration(run.seconds)}{overdue}"


nodes: click.Command = record_command(
    READ["nodes"],
    "Nodes, their lanes, and running jobs.",
    """Each node with its lanes, their shards and running jobs, from the node's last report.

    seen: the age of the report. A node that is silent for longer than its lease is lost, and other nodes take
    its shards.
    """,
    ["nodes", "nodes --json"],
    _write_nodes,
    records=lambda found: found.nodes,
)


# ``masters``: the servers that store the shards.

MASTERS: Columns = {
    "master": lambda one: one.name,
    ">slots": lambda one: _known(one.slots),
    ">shards": lambda one: str(one.shard_count),
    ">replicas": lambda one: _known(None if _trouble(one) else one.server.replicas),
    ">memory": lambda one: "-" if _trouble(one) else size(one.server.used_memory),
    ">clock": lambda one: "-" if _trouble(one) else f"{one.server.ahead:+.3f} s",
    "server": lambda one: _trouble(one) or f"{one.server.name} {one.server.version}".rstrip(),
}
#: Smallest difference of clocks that is shown, in s.
MEASURABLE = 0.1


def _write_masters(topology: Topology) -> None:
    write_text(table_of(MASTERS, topology.masters))
    if topology.kind is Kind.CLUSTER:
        write_text(_masters_summary(topology))


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)


def _trouble(master: Master) -> str:
    if master.unreachable is not None:
        return f"unreachable: {master.unreachable}"
    return "" if master.refuses is None else f"refuses: {master.refuses}"


def _masters_summary(topology: Topology) -> str:
    skew = topology.clock_skew
    clocks = f"The clocks of the masters differ by {duration(skew)} at least."
    if skew < MEASURABLE:
        clocks = "No difference between the clocks of the masters was measured."
    parts = [f"The busiest master has {topology.skew:.2f} times its share of shards.", clocks]
    if topology.unassigned:
        parts.append(f"{topology.unassigned} slots have no master.")
    return " ".join(parts)


masters: click.Command = record_command(
    READ["masters"],
    "Masters of Redis, with their shards.",
    """The servers that store shards: those of a cluster, or the only one.

    shards: of all queues. clock: ahead of this host's by so much. Behind sentinels, the address of the master
    stands beside its name.

    Status 1 when a master is unreachable or refuses all scripts, or slots of a cluster have none.
    """,
    ["masters", "masters --json"],
    _write_masters,
    failed=lambda topology: not topology.is_whole,
)


# ``doctor``: health checks, and what to do about each problem.


def _write_findings(found: Findings) -> None:
    for finding in found.findings:
        write_text(escaped(f"{finding.level:8} {finding.subject}: {finding.text}"))
        if finding.advice:
            write_text(f"         {escaped(finding.advice)}")


doctor: click.Command = record_command(
    READ["doctor"],
    "Check Redis, nodes and queues.",
    """Check Redis (version, memory policy, persistence, clock), the nodes, and the queues (number of shards,
    damaged keys, nodes that serve them, shards and jobs without an owner, jobs that wait while lanes are
    free), and say what to do.

    Status 1 when there is an error; a warning alone is status 0.
    """,
    ["doctor", "doctor --json"],
    _write_findings,
    failed=lambda found: any(finding.level == ERROR for finding in found.findings),
    records=lambda found: found.findings,
)


# ``failures``: the failures of a queue, or of all, in groups.

NO_GROUPS = "the master with the groups of the queue is unreachable"
#: Of the name of a queue with a group.
FAILURE_GROUPS: Columns = {
    "queue": lambda one: one[0],
    "failure": lambda one: one[1].fingerprint,
    ">count": lambda one: str(one[1].count),
    ">failing": lambda one: str(one[1].failing),
    ">dead": lambda one: str(one[1].dead),
    "first seen": lambda one: _seen(one[1].first_seen),
    "last seen": lambda one: _seen(one[1].last_seen),
    "error": lambda one: cell(one[1].error),
    "where": lambda one: one[1].where,
}


@command(
    "Failures, in groups.",
    ["failures", "failures sync_order", "failures sync_order 9f86d081884c7d65", "failures sync_order --json"],
)
@click.argument("queue", metavar="[QUEUE]", required=False)
@click.argument("failure", required=False, default="")
@json_option
def failures(inspector: Inspector, queue: str | None, failure: str, json_: bool) -> None:
    """Failures of QUEUE, or of all queues, in groups: the same type, message and place in your code; or one
    FAILURE of QUEUE with an example.

    In messages, * stands for numbers and ids. count: runs that failed. failing, dead: jobs of the group now.
    `requeue`, `bury` and `delete` take a group as --failure.
    """
    names = inspector.queues() if queue is None else [queue]
    found = {name: inspector.queue(name).failures(failure) for name in names}
    groups = [(name, one) for name, of_queue in found.items() for one in of_queue.groups]
    if json_:
        for name, one in groups:
            write_json({"queue": name, **vars(one)})
    elif failure and groups:
        _write_group(*groups[0])
    elif groups:
        write_text(table_of(FAILURE_GROUPS, groups))
    else:
        write_text("none", err=True)
    _write_limits(found)
    end_listing({address: shards for one in found.values() for address, shards in one.unreachable.items()})
    if failure and not groups:
        raise click.exceptions.Exit(FAILED)


def _write_limits(found: Mapping[str, Failures]) -> None:
    searched, jobs = (sum(getattr(one, name) for one in found.values()) for name in ("searched", "jobs"))
    if searched < jobs:
        write_text(f"failing and dead: searched {searched:,} of {jobs:,} jobs", err=True)
    if any(one.unknown for one in found.values()):
        write_text(f"{NO_GROUPS}: only jobs of now are counted", err=True)


def _seen(at: float | None) -> str:
    return "" if at is None else moment(at)


def _write_group(queue: str, one: FailureGroup) -> None:
    for name, value in FAILURE_GROUPS.items():
        write_text(f"{name.lstrip('>') + ':':12} {escaped(value((queue, one)))}")
    write_text("example:")
    for line in one.example.splitlines():
        write_text(f"  {escaped(line)}")


# ``why``: one answer to why an id does not run.


def _write_reasons(found: Why) -> None:
    for reason in found.reasons:
        write_text(escaped(reason.text))


why: click.Command = record_command(
    Read(
        "why", "Why an id is not running", Why, lambda queue, **given: queue.why(given[ID.name]), (QUEUE, ID)
    ),
    "Why an id is not running.",
    """Where an ID of QUEUE is, and why it does not run, in words.

    It is done or was never there, waits for its time or behind others, is paused, or dead; its shard has no
    owner, or one that does not answer; or it is running. Status 1 when there is no such job.
    """,
    ["why sync_order 42", "why sync_order 42 --json"],
    _write_reasons,
    failed=lambda found: found.kind == "nowhere",
)


# ``job``: where an id is, and what it has.

#: Names, the longest of which is "processing".
COLUMN = 12


def _write_places(found: PlacesJson) -> None:
    known = {"id": found.id, "queue": found.queue, "shard": found.shard, "owner": found.owner or "none"}
    write_text("\n".join(f"{name:{COLUMN}}{escaped(str(value))}" for name, value in known.items()))
    for name in ("waiting", "processing", "dead"):
        if (place := getattr(found, name)) is not None:
            write_text(_place_text(name, place))


def _place_text(name: str, place: ShownJob | ShownDeadJob) -> str:
    when = place.updated_at if isinstance(place, ShownDeadJob) else place.perform_in
    lines = [f"{name:{COLUMN}}{moment(when)}, {relative(when, time.time())}"]
    if isinstance(place, ShownJob):
        lines.append(f"  retry_count {place.retry_count}")
        if place.priority:
            lines.append(f"  priority    {place.priority}")
        if place.held:
            lines.append("  held        by a dead payload of its id")
        if place.paused:
            lines.append("  paused      its id is paused")
    if place.error is not None:
        first, *rest = place.error.splitlines() or [""]
        lines.append(f"  error       {escaped(first)}")
        lines += [f"    {escaped(line)}" for line in rest]
    lines.append(f"  payloads    {place.payload_count}")
    lines += [f"    score {payload.score!r}  {payload_text(payload, None)}" for payload in place.payloads]
    left = place.payload_count - len(place.payloads)
    return "\n".join([*lines, f"    and {left} more"] if left > 0 else lines)


def _is_nowhere(found: PlacesJson) -> bool:
    if any((found.waiting, found.processing, found.dead)):
        return False
    write_text(f"queue {found.queue} has no job {escaped(found.id)}", err=True)
    return True


job: click.Command = record_command(
    READ["job"],
    "Where an id is, and what it has.",
    """Where an ID of QUEUE is: waiting, being processed, in the morgue; with payloads, scores and last error.

    Status 1 when it is nowhere.
    """,
    ["job sync_order 42", "job sync_order 42 --json"],
    _write_places,
    failed=_is_nowhere,
)


# ``jobs``: the waiting jobs of a queue.

jobs: click.Command = listing_command(
    "jobs",
    "Waiting jobs of a queue.",
    """Waiting jobs of QUEUE.

    By id they come in no order. By perform_in: --from is a time. By retry_count: failed jobs only, --from is
    a number (-1 never failed, 0 failed once).
    """,
    (
        "jobs sync_order --by perform_in",
        "jobs sync_order --by retry_count --from 3 --limit 0",
        "jobs sync_order --prefix 42 --json",
    ),
    ("id", "perform_in", "retry_count"),
    {
        "id": lambda job: job.id,
        "perform_in": lambda job: moment(job.perform_in),
        ">retry_count": lambda job: str(job.retry_count),
        ">payloads": lambda job: str(job.payload_count),
        "first payload": lambda job: first_payload(job.payloads),
        "error": lambda job: error_text(job.error),
    },
)


# ``morgue``: the dead jobs of a queue.

morgue: click.Command = listing_command(
    "morgue",
    "Dead jobs of a queue.",
    """Dead jobs of QUEUE, sorted by id or by the time of their last death (--from is a time then).""",
    (
        "morgue sync_order --by updated_at --reverse",
        "morgue sync_order --by updated_at --from -1h --json",
        "morgue sync_order --prefix 42",
    ),
    ("id", "updated_at"),
    {
        "id": lambda job: job.id,
        "updated_at": lambda job: moment(job.updated_at),
        ">payloads": lambda job: str(job.payload_count),
        "first payload": lambda job: first_payload(job.payloads),
        "error": lambda job: error_text(job.error),
    },
)


# ``held``: the ids of a queue that a dead payload holds.


@command("Ids that a dead payload holds.", ["held sync_order", "held sync_order --json"])
@queue_argument
@json_option
def held(inspector: Inspector, queue: str, json_: bool) -> None:
    """The ids of QUEUE whose newer payloads wait behind a dead one, the longest held first.

    Requeue or delete the dead payload, or let the id go on.
    """
    unreachable: dict[str, str] = {}
    found: Iterator[HeldId] = all_items(inspector.queue(queue).held_ids, unreachable)
    texts = (
        (one, f"{escaped(one.id)} since {moment(one.since)}{', and paused' if one.paused else ''}")
        for one in found
    )
    write_lines(texts, json_)
    end_listing(unreachable)


# ``paused``: the pauses of a queue.


@command("Pauses of a queue.", ["paused sync_order", "paused sync_order --json"])
@queue_argument
@json_option
def paused(inspector: Inspector, queue: str, json_: bool) -> None:
    """The pauses of QUEUE, of its shards and of its ids, with their times."""
    ordered = inspector.queue(queue)
    now = ordered.paused()
    unreachable = dict(now.unreachable)
    pauses = _paused(ordered, now, unreachable)
    write_lines(
        (
            ({kind: name, "since": since}, f"{kind} {escaped(str(name))} since {moment(since)}")
            for kind, name, since in pauses
        ),
        json_,
    )
    end_listing(unreachable)


def _paused(
    queue: OrderedQueue, now: Paused, unreachable: dict[str, str]
) -> Iterator[tuple[str, str | int, float]]:
    if now.queue is not None:
        yield "queue", queue.name, now.queue
    for shard, since in sorted(now.shards.items()):
        yield "shard", shard, since
    for one in all_items(queue.paused_ids, unreachable):
        yield "id", one.id, one.since


# ``audit``: the changes that people made.


@command("Changes that people made.", ["audit", "audit --limit 1000 --json"])
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Most entries.")
@json_option
def audit(inspector: Inspector, limit: int, json_: bool) -> None:
    """The changes that people made by the dashboard, the API, Flower and commands, the latest first."""
    entries = islice(all_items(Audit(inspector.app).read), limit)
    write_lines(((entry, f"{moment(entry.at)} {line_of(entry)}") for entry in entries), json_)


# ``progress``: the progress of a tracker.

STATES = [state.value for state in State]


def _counted(state: str) -> Callable[[TrackerView], str]:
    return lambda view: str(getattr(view.counts, state))


TRACKERS: Columns = {
    "id": lambda view: view.id,
    "name": lambda view: view.name,
    "opened": lambda view: moment(view.opened_at),
    ">total": lambda view: str(view.counts.total),
    **{f">{state}": _counted(state) for state in STATES},
    "": lambda view: (
        "cancelled" if view.cancelled else "done" if view.done else "" if view.closed else "open"
    ),
}
CALLS: Columns = {
    "queue": lambda call: call.queue,
    "id": lambda call: call.id,
    "state": lambda call: call.state.value,
    "updated": lambda call: moment(call.updated_at),
    "progress": lambda call: _progress(call),
    "payload": lambda call: cell(value_text(call.payload)),
    "last message": lambda call: cell(call.messages[-1].text) if call.messages else "",
}
PROGRESS_EXAMPLES = [
    "progress",
    "progress 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11",
    "progress 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11 --state failed --state error",
]
#: Seconds between two updates of the bar; the end of the tracker is shown at once.
LOOK = 0.25


@command("Progress of a tracker.", PROGRESS_EXAMPLES)
@click.argument("id_", metavar="[ID]", required=False)
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="List its calls in this state."
)
@click.option(
    "--limit", default=100, show_default=True, help="Maximum number of lines; 0: all.", type=click.IntRange(0)
)
@json_option
def progress(inspector: Inspector, id_: str | None, states: tuple[str, ...], limit: int, json_: bool) -> None:
    """Progress of the tracker with this ID; without an ID, of all trackers, the latest first.

    On a terminal, a bar moves until all calls have ended. Status 1 if there is no such tracker.
    """
    if id_ is None:
        write_listing(all_items(inspector.trackers), limit, TRACKERS, json_)
        return
    tracker = find_tracker(inspector, id_)
    if states:
        write_listing(all_items(tracker.jobs, state=states), limit, CALLS, json_)
        return
    if sys.stderr.isatty() and not json_:
        _watch_tracker(tracker)
    view = tracker.view()
    if json_:
        write_json(view)
    else:
        write_text(table_of(TRACKERS, [view]))


def _watch_tracker(tracker: Tracker) -> None:
    """Move the bar until the end, or until Ctrl-C."""
    bar = click.progressbar(length=1, label=escaped(tracker.name), file=sys.stderr, show_pos=True)
    with suppress(KeyboardInterrupt), bar:
        ended = False
        while not ended:
            ended = tracker.wait(LOOK)
            counts = tracker.counts()
            bar.length = max(counts.total, 1)
            bar.update(counts.ended - bar.pos)
            bar.render_progress()


def _progress(call: TrackedCall) -> str:
    if call.current is None:
        return ""
    return f"{call.current:g}" if call.total is None else f"{call.current:g}/{call.total:g}"
