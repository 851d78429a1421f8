"""Heartbeats and reports of nodes, and samples of queues: reads, script calls, and their encoding."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.text import ranges_by_queue
from celery_lowkiq.rules.views import (
    DAY,
    HOUR,
    LISTED_SHARDS,
    SHARDS_KEPT,
    SHARDS_STEP,
    Counters,
    LaneReport,
    NodeReport,
    NodeUpdate,
    Running,
    Sample,
    Span,
    UpdateReply,
    Wait,
    node_name,
)
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.errors import K, Outcomes
from celery_lowkiq.store.exchange import Command
from celery_lowkiq.store.keys import history_key, nodes_key, queue_key, report_key, reports_key, shard_keys
from celery_lowkiq.store.records import number_text, parse_id, parse_seconds, reads_replies, seconds_of_time
from celery_lowkiq.store.script import ScriptCall, Value, load

#: Seconds for which a node's last report is kept.
REPORT_TTL = 3600
REPORT_FIELDS = ("at", "started", "text")
#: Maximum number of nodes that are read, the most recent ones.
MOST_NODES = 1000
#: Fields of the history with counters by shard, ``<minute> <at> <processed>,<processed>...``.
SHARDS_FIELDS = tuple(f"shards {place}" for place in range(SHARDS_KEPT))
#: The keys of a shard that its counters and lag are read from.
COUNTED = ("meta", "due", "due_prioritized", "claimed")
_COUNTERS = re.compile(rb"\d+ (\d{1,12}(?:\.\d{1,9})?) (\d{1,18}(?:,\d{1,18})*)")
#: Queues and shards that one script handles.
QUEUES = 100
SHARDS = 500


def read_reports(client: Client, owners: Sequence[str]) -> list[NodeReport]:
    """Return the existing reports of owners in one round trip."""
    *replies, time = client.commands([*map(report_command, owners), ("TIME",)])
    now = seconds_of_time(time)
    reports = [parse_report(owner, fields, now) for owner, fields in zip(owners, replies, strict=True)]
    return [report for report in reports if report is not None]


@reads_replies
def read_nodes(client: Client) -> list[NodeReport]:
    """Return the last reports of the nodes that reported in the last hour and did not shut down."""
    (owners,) = client.commands([("ZREVRANGE", reports_key(), 0, MOST_NODES - 1)])
    return read_reports(client, [parse_id(owner) for owner in owners])


class Timed(NamedTuple):
    """A reply, and the clock (Unix s) of the master that gave it: that of another one may differ."""

    reply: Any
    now: float


def each_timed(client: Client, commands: Mapping[K, Command]) -> Outcomes[K]:
    """Run commands as ``Client.each_command`` does, and return each reply with the clock of its master."""
    found, errors = client.each_pair(commands, ("TIME",))
    return {key: Timed(reply, seconds_of_time(time)) for key, (reply, time) in found.items()}, errors


@reads_replies
def histories(
    client: Client, queues: Sequence[QueueSpec], span: Span = HOUR
) -> tuple[dict[str, tuple[Sample, ...]], dict[str, StoreError]]:
    """Return each queue's samples of a span, oldest first, in one round trip; and the errors of queues
    whose own master is unreachable.
    """
    commands = {queue.name: ("HVALS", history_key(queue.name, span)) for queue in queues}
    found, errors = each_timed(client, commands)
    return {name: parse_history(one.reply, one.now, span) for name, one in found.items()}, errors


def report_command(owner: str) -> tuple[Any, ...]:
    """Return the command that reads the fields of ``parse_report``."""
    return ("HMGET", report_key(owner), *REPORT_FIELDS)


def beat_calls(client: Client, queues: Sequence[str], member: str, turn: int) -> list[ScriptCall]:
    """Return the calls that move a node's heartbeat in these queues, and read their numbers of shards."""
    return [
        load("heartbeat").call_many(
            [key for queue in part for key in (nodes_key(queue), queue_key(queue))], member=member, turn=turn
        )
        for part in client.slices(queues, QUEUES)
    ]


def report_calls(client: Client, news: NodeUpdate) -> dict[Any, ScriptCall]:
    """Return the calls for the report, for clocks, for the counters of shards, and for samples, by key.

    On a cluster, the clocks are of the masters that will store the samples of the counted queues: they may
    differ from the clock of the master with the reports.
    """
    report = load("write_report").call(
        {"report": report_key(news.report.owner), "reports": reports_key()},
        owner=news.report.owner,
        text=dump_report(news.report),
        uptime=number_text(news.uptime),
        ttl=REPORT_TTL,
    )
    clocks = {
        ("clock", queue.name): load("read_clock").call({"history": history_key(queue.name)})
        for queue in (() if client.cluster is None else news.counted)
    }
    counters = {
        ("counters", part[0]): load("read_counters").call_many(
            [key for shard in part for key in shard_keys(shard).bind(COUNTED)]
        )
        for queue in news.counted
        for part in client.slices(queue.shard_refs(), SHARDS)
    }
    parts = client.slices(news.samples, QUEUES)
    samples = {("samples", n): sample_call(part) for n, part in enumerate(parts)}
    return {"report": report, **clocks, **counters, **samples}


def sample_call(samples: Sequence[tuple[str, Counters]]) -> ScriptCall:
    """Return the call that stores a sample of the counters of each of these queues, and those by shard."""
    values: list[Value] = []
    for _, counters in samples:
        at, minute = number_text(counters.at), int(counters.at // SHARDS_STEP)
        total, lag = f"{at} {sum(counters.processed)} {counters.failed}", f"{counters.lag:.1f}"
        for span in (HOUR, DAY):
            number = span.slot(counters.at)
            values += (number % span.samples, number, span.seconds + span.step, total, lag)
        by_shard = ",".join(map(str, counters.processed))
        place, ttl = SHARDS_FIELDS[minute % SHARDS_KEPT], HOUR.seconds + HOUR.step
        values += (place, minute, ttl, f"{at} {by_shard}", "")
    keys = [history_key(queue, span) for queue, _ in samples for span in (HOUR, DAY, HOUR)]
    return load("write_samples").call_many(keys, values)


def heartbeat_reply(news: NodeUpdate, found: Mapping[Any, Any]) -> UpdateReply:
    """Parse the replies to :func:`report_calls`."""
    now = parse_seconds(found["report"])
    samples = []
    for queue in news.counted:
        at = parse_seconds(found.get(("clock", queue.name), found["report"]))
        parts = [found[key] for shard in queue.shard_refs() if (key := ("counters", shard)) in found]
        processed = tuple(count for _, _, *of_part in parts for count in of_part)
        lag = max(float(lag) for _, lag, *_ in parts)
        samples.append((queue.name, Counters(at, processed, sum(failed for failed, *_ in parts), lag)))
    return UpdateReply(now, tuple(samples))


def parse_history(flat: Sequence[bytes], now: float, span: Span = HOUR) -> tuple[Sample, ...]:
    """Return the samples of a span, oldest first; foreign values are skipped."""
    samples = []
    for value in flat:
        words = value.split()
        numbers = all(len(word) < 19 and word.replace(b".", b"", 1).isdigit() for word in words)
        if numbers and len(words) == 5:
            at, processed, failed, lag = map(float, words[1:])
            if now - span.seconds < at <= now + span.step:
                samples.append(Sample(at, int(processed), int(failed), lag))
    return tuple(sorted(samples))


def parse_counters(values: Iterable[bytes | None]) -> list[Counters]:
    """Return the counters of the fields SHARDS_FIELDS; missing and foreign values are skipped."""
    found = (_COUNTERS.fullmatch(value or b"") for value in values)
    return [Counters(float(one[1]), tuple(map(int, one[2].split(b",")))) for one in found if one]


# -- encoding


def dump_report(report: NodeReport) -> str:
    """Encode a report, in a few KB at most."""
    return json.dumps(
        {
            "pid": report.pid,
            "lease": report.lease_seconds,
            "quiet": report.quiet,
            "stopping": report.stopping,
            "queues": report.queues,
            "lanes": [_dump_lane(lane) for lane in report.lanes],
            "declared": report.declared,
            "waits": [[ranges_by_queue(wait.shards), wait.seconds] for wait in report.waits],
        },
        separators=(",", ":"),
    )


def _dump_lane(lane: LaneReport) -> dict[str, Any]:
    run = lane.running
    return {
        "name": lane.name,
        "count": lane.shard_count,
        "shards": ranges_by_queue(lane.shards),
        "running": run and _dump_running(run),
        "load": lane.load,
    }


def _dump_running(run: Running) -> list[Any]:
    expected = run.overdue, run.max_run, run.usual
    return [run.shard.queue, run.shard.index, run.ids, run.count, run.seconds, *expected]


def parse_report(owner: str, fields: Sequence[bytes | None], now: float) -> NodeReport | None:
    """Decode a report from the fields ``at``, ``started`` and ``text``; None for foreign or missing data."""
    at, started, text = fields
    try:
        report = json.loads(text or "")
        seen_at = float(at or "")
        return NodeReport(
            name=node_name(owner),
            owner=owner,
            pid=int(report["pid"]),
            lease_seconds=float(report["lease"]),
            quiet=bool(report["quiet"]),
            stopping=bool(report["stopping"]),
            queues=tuple(map(str, report["queues"])),
            lanes=tuple(_parse_lane(lane) for lane in report["lanes"]),
            waits=tuple(Wait(_parse_shards(shards), float(seconds)) for shards, seconds in report["waits"]),
            declared={str(queue): int(shards) for queue, shards in report["declared"].items()},
            started_at=float(started or ""),
            seen_at=seen_at,
            silent=max(0.0, now - seen_at),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _parse_lane(lane: Any) -> LaneReport:
    return LaneReport(
        name=str(lane["name"]),
        shards=_parse_shards(lane["shards"]),
        shard_count=int(lane["count"]),
        running=_parse_running(*lane["running"]) if lane["running"] else None,
        load=_parse_seconds(lane["load"]),
    )


def _parse_shards(ranges_by_queue: dict[str, str]) -> tuple[ShardRef, ...]:
    return tuple(
        islice(
            (
                ShardRef(queue, index)
                for queue, listed in ranges_by_queue.items()
                for first, _, last in (part.partition("-") for part in listed.split(","))
                for index in range(int(first), int(last or first) + 1)
            ),
            LISTED_SHARDS,
        )
    )


def _parse_running(
    queue: str,
    index: int,
    ids: list[Any],
    count: int,
    seconds: float,
    overdue: bool,
    max_run: Any,
    usual: Any,
) -> Running:
    return Running(
        ShardRef(queue, int(index)),
        tuple(map(str, ids)),
        int(count),
        float(seconds),
        bool(overdue),
        _parse_seconds(max_run),
        _parse_seconds(usual),
    )


def _parse_seconds(value: Any) -> float | None:
    return None if value is None else float(value)
