"""The pages that show something."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from . import show
from .actions import ACTIONS
from .changes import operation_of
from .listing import SORTS, Asked
from .params import Params
from .render import page
from .site import site_of

#: Of each payload the page of a job reads so many bytes, and so many payloads.
JOB = {"payload_limit": 100, "payload_bytes": show.MAX_TEXT}
#: What such a page shows of all payloads together, in characters.
MAX_PAGE = 1024 * 1024


def overview(request: Request) -> Response:
    """All queues, the latest first."""
    found = site_of(request).console.overview()
    queues = sorted(found.by_queue.items(), key=lambda entry: (-entry[1].lag, entry[0]))
    return page(request, "overview.html", total=found.total, queues=queues)


def queue(request: Request) -> Response:
    """One queue and a listing of it."""
    params = Params.query(request)
    shown = site_of(request).queue(params.text("queue"))
    asked = Asked.of(params, params.choice("list", SORTS, "jobs"))
    return page(
        request,
        "queue.html",
        queue=shown,
        stats=shown.stats(),
        shards=shown.shard_stats(),
        asked=asked,
        found=asked.of_queue(shown),
        actions=ACTIONS,
        show=show,
    )


def job(request: Request) -> Response:
    """All of one id."""
    params = Params.query(request)
    shown = site_of(request).queue(params.text("queue"))
    job_id = params.text("id")
    return page(
        request,
        "job.html",
        queue=shown,
        job_id=job_id,
        places=shown.job(job_id, **JOB),
        actions=ACTIONS,
        payload_text=lambda payload: show.payload_text(payload, site_of(request).load),
        show=show,
    )


def server(request: Request) -> Response:
    """Redis."""
    return page(request, "redis.html", server=site_of(request).console.server())


def operations(request: Request) -> Response:
    """What was changed through this process."""
    return page(request, "operations.html", operations=site_of(request).operations.all())


def operation(request: Request) -> Response:
    """One change, on its way or done."""
    found = operation_of(site_of(request), Params.query(request).text("id"))
    return page(request, "operation.html", operation=found)
