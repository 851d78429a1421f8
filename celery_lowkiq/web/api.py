"""The JSON API: all that the pages can do. ``openapi.py`` describes it."""

from __future__ import annotations

import json
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.views import Stats

from . import as_json
from .actions import action_of
from .changes import begin, call_off, operation_of
from .errors import Refused
from .listing import SORTS, Asked
from .openapi import description
from .pages import JOB
from .params import Params, body_of, field
from .render import link
from .site import site_of

#: For so many seconds an answer may wait for the end of a change.
MOST_WAIT = 30.0


class Json(Response):
    """ASCII only, so that no id or payload can break the encoding."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), default=str).encode("ascii")


def stats(request: Request) -> Response:
    """Figures in Lowkiq's form."""
    found = site_of(request).console.overview()
    by_worker = {name: _lowkiqs(of_queue) for name, of_queue in found.by_queue.items()}
    return Json({"total": _lowkiqs(found.total), "by_worker": by_worker})


def _lowkiqs(found: Stats) -> dict[str, Any]:
    return {"length": found.length, "morgue_length": found.morgue_length, "lag": found.lag}


def queues(request: Request) -> Response:
    """All queues with their counts; of the damaged ones what is wrong."""
    found = site_of(request).console.overview()
    specs = {name: queue.spec for name, queue in site_of(request).console.queues().items()}
    shown = [as_json.queue(specs[name], of_queue) for name, of_queue in found.by_queue.items()]
    damaged = {name: str(error) for name, error in found.damaged.items()}
    return Json({"total": as_json.stats(found.total), "queues": shown, "damaged": damaged})


def listing(request: Request) -> Response:
    """A page of one of a queue's listings: the last part of the path."""
    params = Params.query(request)
    queue = site_of(request).queue(params.text("queue"))
    found = Asked.of(params, request.url.path.rpartition("/")[2]).of_queue(queue)
    load = site_of(request).load
    return Json({"items": [as_json.job(job, load) for job in found.items], "next": found.next})


def job(request: Request) -> Response:
    """All of one id."""
    params = Params.query(request)
    queue = site_of(request).queue(params.text("queue"))
    places, load = queue.job(params.text("id"), **JOB), site_of(request).load
    parts = {"waiting": places.waiting, "processing": places.processing, "dead": places.dead}
    shown = {name: as_json.job(part, load) if part else None for name, part in parts.items()}
    why, tries = queue.why(params.text("id")), queue.tries(params.text("id"))
    return Json({**shown, "why": as_json.why(why), "tries": [as_json.plain(one) for one in tries]})


def shards(request: Request) -> Response:
    """The shards of a queue, who has each, and what is paused."""
    queue = site_of(request).queue(Params.query(request).text("queue"))
    paused = queue.paused()
    return Json(
        {
            "shards": [as_json.shard(one) for one in queue.shards()],
            "paused": paused.queue,
            "paused_ids": paused.ids,
        }
    )


def paused_ids(request: Request) -> Response:
    """A page of the paused ids of a queue."""
    params = Params.query(request)
    found = site_of(request).queue(params.text("queue")).paused_ids(after=params.cursor())
    return Json({"items": [as_json.plain(one) for one in found.items], "next": found.next})


def history(request: Request) -> Response:
    """Samples of the last hour, of a queue or of all."""
    params, console = Params.query(request), site_of(request).console
    name = params.text("queue", "")
    found = site_of(request).queue(name).history() if name else console.history().total
    return Json({"samples": [as_json.plain(sample) for sample in found]})


def nodes(request: Request) -> Response:
    """What the nodes say of themselves."""
    return Json({"nodes": [as_json.node(node) for node in site_of(request).console.nodes()]})


def server(request: Request) -> Response:
    """What Redis says of itself."""
    return Json(as_json.plain(site_of(request).console.server()))


def checkup(request: Request) -> Response:
    """Whether all is well, and what to do where it is not."""
    return Json({"findings": [as_json.plain(finding) for finding in site_of(request).console.checkup()]})


# -- changes


async def change(request: Request) -> Response:
    """Begin an operation; wait for its end for up to ``wait`` s."""
    fields = await _fields(request)
    return await run_in_threadpool(_change, request, fields)


def _change(request: Request, fields: dict[str, Any]) -> Response:
    action = action_of(field(fields, "action", str))
    target = as_json.target(fields)
    wait = field(fields, "wait", float, 0)
    if not 0 <= wait <= MOST_WAIT:
        raise InvalidCall(f"wait={wait:g}: 0 to {MOST_WAIT:g} s are allowed")
    queue = site_of(request).queue(field(fields, "queue", str))
    operation = begin(request, queue, action, target)
    operation.wait(wait)
    return Json(as_json.operation(operation), status_code=202 if operation.running else 200)


def operations(request: Request) -> Response:
    """The operations of this process, newest first."""
    return Json({"operations": [as_json.operation(one) for one in site_of(request).operations.all()]})


def operation(request: Request) -> Response:
    """One operation."""
    return Json(as_json.operation(operation_of(site_of(request), request.path_params["id"])))


def cancel(request: Request) -> Response:
    """Stop an operation after the step that runs."""
    found = operation_of(site_of(request), request.path_params["id"])
    call_off(request, found)
    return Json(as_json.operation(found), status_code=202)


async def _fields(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Only scripts of our own origin, or no browser, can send this type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(f"content type {kind[:100]!r}: application/json is allowed", 415)
    try:
        fields = json.loads(await body_of(request))
    except (ValueError, RecursionError):
        raise InvalidCall("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise InvalidCall("the body is not a JSON object")
    return fields


def openapi(request: Request) -> Response:
    """The description of all this."""
    return Json(description(link(request, "/api/v1")))


#: Under ``/api/v1``.
ROUTES = (
    ("GET", "/stats", stats),
    ("GET", "/queues", queues),
    *(("GET", f"/{name}", listing) for name in SORTS),
    ("GET", "/job", job),
    ("GET", "/shards", shards),
    ("GET", "/paused_ids", paused_ids),
    ("GET", "/history", history),
    ("GET", "/nodes", nodes),
    ("GET", "/redis", server),
    ("GET", "/checkup", checkup),
    ("POST", "/changes", change),
    ("GET", "/operations", operations),
    ("GET", "/operations/{id}", operation),
    ("DELETE", "/operations/{id}", cancel),
    ("GET", "/openapi.json", openapi),
)


# -- health


def healthz(_: Request) -> Response:
    """The process answers."""
    return Json({"status": "ok"})


def readyz(request: Request) -> Response:
    """Redis answers, too."""
    site_of(request).console.server()
    return Json({"status": "ok"})
