"""``nodes``: the nodes, their lanes, and running jobs."""

from __future__ import annotations

from collections.abc import Iterator

from celery_lowkiq.cli.output import command, json_option, table, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.health import expected
from celery_lowkiq.rules.text import duration, format_job_ids
from celery_lowkiq.rules.views import LaneReport, NodeReport

HEADER = ("node", "state", ">seen", ">up", "lane", ">shards", "doing")


@command("Nodes, their lanes, and running jobs.", ["nodes", "nodes --json"])
@json_option
def nodes(inspector: Inspector, json_: bool) -> None:
    """Each node with its lanes, their shards and running jobs, from the node's last report.

    seen: the age of the report. A node that is silent for longer than its lease is lost, and other nodes take
    its shards.
    """
    found = inspector.nodes()
    if json_:
        for node in found:
            write_json(node)
    elif found:
        write_text(table(HEADER, [row for node in found for row in _rows(node)]))
    else:
        write_text("none: does a worker with ordered queues run?", err=True)


def _rows(node: NodeReport) -> Iterator[list[str]]:
    """The name of the node is in the first row only."""
    up = node.seen_at - node.started_at
    first = [node.name, _state(node), f"{duration(node.silent)} ago", duration(up)]
    for number, lane in enumerate(node.lanes or (LaneReport("-", (), 0),)):
        yield [*(first if number == 0 else [""] * len(first)), lane.name, str(lane.shard_count), _doing(lane)]


def _state(node: NodeReport) -> str:
    if not node.alive:
        return "lost"
    if node.stopping:
        return "stopping"
    return "quiet" if node.quiet else "working"


def _doing(lane: LaneReport) -> str:
    run = lane.running
    if run is None:
        return "nothing"
    overdue = f", overdue: {expected(run)}" if run.overdue else ""
    return f"{format_job_ids(run.ids, run.count)} of {run.shard} for {duration(run.seconds)}{overdue}"
