"""The pages that show something."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import groupby

from starlette.requests import Request
from starlette.responses import Response

from celery_lowkiq.rules.reports import LaneReport
from celery_lowkiq.rules.views import Stats

from . import charts, show
from .actions import ACTIONS
from .changes import operation_of
from .listing import SORTS, Asked
from .overview import look_at
from .params import Params
from .render import page
from .shards import shards_look
from .show import Texts
from .site import site_of

#: The page of a job reads so many payloads, each of them whole: all of it makes its mark.
JOB = {"payload_limit": 100}
#: Of findings, the worst first.
LEVELS = ("error", "warning", "ok")
#: So many queues of a lane are told.
MOST_PARTS = 10


def overview(request: Request) -> Response:
    """All queues, the latest first."""
    console, now = site_of(request).console, time.time()
    history = console.history()
    alive = [node for node in console.nodes() if node.alive]
    queues = look_at(history.by_queue, console.looks(), {node.owner for node in alive})
    return page(
        request,
        "overview.html",
        total=sum((queue.stats for queue in queues), Stats()),
        queues=queues,
        alive=len(alive),
        lanes=sum(len(node.lanes) for node in alive),
        history=charts.columns(history.total, now, charts.MINUTE),
        sparks={name: charts.columns(one, now, charts.MINUTES) for name, one in history.by_queue.items()},
    )


def queue(request: Request) -> Response:
    """One queue and a listing of it, or its shards."""
    params = Params.query(request)
    shown = site_of(request).queue(params.text("queue"))
    listed = params.choice("list", (*SORTS, "shards", "paused"), "jobs")
    asked = Asked.of(params, listed) if listed in SORTS else None
    paused_ids = shown.paused_ids(after=params.cursor()) if listed == "paused" else None
    shards = shown.shards()
    return page(
        request,
        "queue.html",
        queue=shown,
        listed=listed,
        shards=shards,
        stats=sum((shard.stats for shard in shards), Stats()),
        looks=[shards_look(shard) for shard in shards],
        paused=shown.paused(),
        asked=asked,
        found=asked.of_queue(shown) if asked else paused_ids,
        history=charts.columns(shown.history(), time.time(), charts.MINUTE),
        actions=ACTIONS,
        show=show,
    )


def job(request: Request) -> Response:
    """All of one id."""
    params = Params.query(request)
    shown, job_id = site_of(request).queue(params.text("queue")), params.text("id")
    places, why = shown.job(job_id, **JOB), shown.why(job_id)
    edited = params.text("edit", "")
    return page(
        request,
        "job.html",
        queue=shown,
        job_id=job_id,
        places=places,
        why=why,
        tries=shown.tries(job_id),
        paused=why.facts.id_paused,
        edited=edited,
        actions=ACTIONS,
        texts=Texts(site_of(request).load),
        show=show,
    )


@dataclass(frozen=True)
class ShardsPart:
    """The shards of one queue that a lane has, shortened to ranges: 0-3, 7."""

    queue: str
    text: str


def shard_parts(lane: LaneReport) -> list[ShardsPart]:
    """What a lane has, by queue; of a lane with very many not all is told."""
    found = groupby(sorted(lane.shards), key=lambda shard: shard.queue)
    parts = [ShardsPart(name, _ranges([shard.index for shard in shards])) for name, shards in found]
    return parts[:MOST_PARTS]


def _ranges(numbers: list[int]) -> str:
    """Of sorted numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def nodes(request: Request) -> Response:
    """The workers, their lanes, and what each runs."""
    found = site_of(request).console.nodes()
    busy = sum(lane.running is not None for node in found if node.alive for lane in node.lanes)
    return page(request, "nodes.html", nodes=found, busy=busy, shard_parts=shard_parts)


def server(request: Request) -> Response:
    """Redis."""
    console = site_of(request).console
    found = sorted(console.checkup(), key=lambda finding: LEVELS.index(finding.level))
    return page(request, "redis.html", server=console.server(), findings=found)


def operations(request: Request) -> Response:
    """What was changed through this process."""
    return page(request, "operations.html", operations=site_of(request).operations.all())


def operation(request: Request) -> Response:
    """One change, on its way or done."""
    found = operation_of(site_of(request), Params.query(request).text("id"))
    return page(request, "operation.html", operation=found)
