"""The JSON API: all that the pages can do."""

from __future__ import annotations

import json
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from celery_lowkiq.integration.operations import json_shapes as shapes
from celery_lowkiq.integration.operations.actions import action_of
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.server_info import ServerInfo
from celery_lowkiq.rules.views import Page, PausedId

from .changes import begin, call_off, operation_of
from .endpoints import AFTER, ID, LIMIT, QUEUE, TEXT, Endpoint, Json, Query
from .errors import Refused
from .listing import SORTS, Asked
from .openapi import MAX_WAIT
from .operations import Operation
from .pages import JOB
from .params import Params, body_of, field
from .site import queue_of, site_of


def stats(request: Request) -> shapes.LowkiqStats:
    """Counts in Lowkiq's form."""
    found = site_of(request).inspector.overview()
    return shapes.lowkiq_stats(found.total, found.by_queue)


def queues(request: Request) -> shapes.OverviewJson:
    """All queues with their counts; of damaged ones what is wrong."""
    return site_of(request).inspector.overview_json()


def listing(request: Request) -> Page[shapes.JobJson] | Page[shapes.DeadJobJson]:
    """A page of jobs of a queue; pass its `next` as `after` for the following one."""
    name, reading = request.url.path.rpartition("/")[2], site_of(request).reading
    found = Asked.of(Params.query(request), name).of_queue(queue_of(request))
    record: Any = shapes.dead_job_json if name == "morgue" else shapes.job_json
    return Page(tuple(record(job, reading) for job in found.items), found.next)


def job(request: Request) -> shapes.PlacesJson:
    """Everything about one id."""
    queue, job_id = queue_of(request), Params.query(request).text("id")
    places = queue.job(job_id, **JOB)
    return shapes.places_json(places, queue.why(job_id), queue.tries(job_id), site_of(request).reading)


def shards(request: Request) -> shapes.ShardsJson:
    """The shards of a queue, who has each, and what is paused."""
    queue = queue_of(request)
    paused = queue.paused()
    return shapes.ShardsJson(queue.shards(), paused.queue, paused.ids)


def paused_ids(request: Request) -> Page[PausedId]:
    """A page of the paused ids of a queue."""
    return queue_of(request).paused_ids(after=Params.query(request).cursor())


def history(request: Request) -> shapes.SamplesJson:
    """Counters of the last hour, of one queue or of all."""
    one = Params.query(request).text("queue", "")
    inspector = site_of(request).inspector
    return shapes.SamplesJson(queue_of(request).history() if one else inspector.history().total)


def nodes(request: Request) -> shapes.NodesJson:
    """The nodes, their lanes, and what each runs."""
    return shapes.NodesJson(tuple(site_of(request).inspector.nodes()))


def server(request: Request) -> ServerInfo:
    """What Redis reports about itself."""
    return site_of(request).inspector.server()


def doctor(request: Request) -> shapes.FindingsJson:
    """The results of the health checks, and what to do about them."""
    return shapes.FindingsJson(site_of(request).inspector.doctor())


# -- changes


async def change(request: Request) -> Response:
    """Begin an action; wait for its end for up to `wait` s."""
    fields = await _fields(request)
    return await run_in_threadpool(_change, request, fields)


def _change(request: Request, fields: dict[str, Any]) -> Response:
    action = action_of(field(fields, "action", str))
    wait = field(fields, "wait", float, 0)
    if not 0 <= wait <= MAX_WAIT:
        raise InvalidCall(f"wait={wait:g} is invalid: expected 0 to {MAX_WAIT:g} s")
    queue = site_of(request).queue(field(fields, "queue", str))
    ids = field(fields, "ids", list, [])
    if not all(isinstance(one, str) for one in ids):
        raise InvalidCall("ids is invalid: expected a list of texts")
    values = {name: value for name, value in fields.items() if name not in ("action", "wait", "queue", "ids")}
    operation = begin(request, queue, action, action.target(queue, ids, values))
    operation.wait(wait)
    return Json(operation_json(operation), status_code=202 if operation.running else 200)


def operations(request: Request) -> shapes.OperationsJson:
    """The changes of this process, newest first."""
    return shapes.OperationsJson(tuple(map(operation_json, site_of(request).operations.all())))


def operation(request: Request) -> shapes.OperationJson:
    """One change."""
    return operation_json(operation_of(site_of(request), request.path_params["id"]))


def cancel(request: Request) -> shapes.OperationJson:
    """Stop a change after the step that runs."""
    found = operation_of(site_of(request), request.path_params["id"])
    call_off(request, found)
    return operation_json(found)


def operation_json(found: Operation) -> shapes.OperationJson:
    """The record of a change."""
    asked = found.change
    return shapes.OperationJson(
        found.id,
        asked.action,
        asked.queue,
        asked.user,
        found.state,
        found.count,
        found.total,
        found.began_at,
        found.ended_at,
        found.error,
    )


async def _fields(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Only scripts of our own origin, or no browser, can send this type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(f"content type {kind[:100]!r} is invalid: expected application/json", 415)
    try:
        fields = json.loads(await body_of(request))
    except (ValueError, RecursionError):
        raise InvalidCall("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise InvalidCall("the body is not a JSON object")
    return fields


def _searches(listing: str) -> tuple[Query, ...]:
    if listing == "processing":
        return ()
    bound = {"type": "number"}
    return (
        Query("by", {"enum": list(SORTS[listing])}),
        Query("prefix", TEXT),
        Query("minimum", bound),
        Query("maximum", bound),
        Query("reverse", {"enum": ["0", "1"]}),
    )


def _listing(name: str) -> Endpoint:
    answer: Any = Page[shapes.DeadJobJson] if name == "morgue" else Page[shapes.JobJson]
    return Endpoint("GET", f"/{name}", listing, answer, (QUEUE, *_searches(name), LIMIT, AFTER))


ENDPOINTS = (
    Endpoint("GET", "/stats", stats, shapes.LowkiqStats),
    Endpoint("GET", "/queues", queues, shapes.OverviewJson),
    *map(_listing, SORTS),
    Endpoint("GET", "/job", job, shapes.PlacesJson, (QUEUE, ID)),
    Endpoint("GET", "/shards", shards, shapes.ShardsJson, (QUEUE,)),
    Endpoint("GET", "/paused_ids", paused_ids, Page[PausedId], (QUEUE, AFTER)),
    Endpoint("GET", "/history", history, shapes.SamplesJson, (Query("queue", TEXT),)),
    Endpoint("GET", "/nodes", nodes, shapes.NodesJson),
    Endpoint("GET", "/redis", server, ServerInfo),
    Endpoint("GET", "/doctor", doctor, shapes.FindingsJson),
    Endpoint("POST", "/changes", change, shapes.OperationJson, body="Change"),
    Endpoint("GET", "/operations", operations, shapes.OperationsJson),
    Endpoint("GET", "/operations/{id}", operation, shapes.OperationJson),
    Endpoint("DELETE", "/operations/{id}", cancel, shapes.OperationJson, status=202),
)


# -- health


def healthz(_: Request) -> Response:
    """The process answers."""
    return Json({"status": "ok"})


def readyz(request: Request) -> Response:
    """Redis answers, too."""
    site_of(request).inspector.server()
    return Json({"status": "ok"})
