"""The JSON API: everything that the pages can do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from celery_lowkiq.integration.operations.action_parts import FILTERS, SHARDS
from celery_lowkiq.integration.operations.actions import action_of
from celery_lowkiq.integration.operations.audit import AuditEntry
from celery_lowkiq.integration.operations.failures_mixin import Failures, Matches
from celery_lowkiq.integration.operations.job_filters import read_filter
from celery_lowkiq.integration.operations.json_records import OverviewJson, PlacesJson, places_json
from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.integration.operations.shown_jobs import ShownDeadJob, ShownJob
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.findings import Finding
from celery_lowkiq.rules.history import HOUR, SPANS, Sample
from celery_lowkiq.rules.reports import NodeReport, ShardReport
from celery_lowkiq.rules.resharding import MigrationState, ReshardCost
from celery_lowkiq.rules.server_info import ServerInfo
from celery_lowkiq.rules.shard_hints import Hint
from celery_lowkiq.rules.topology import Topology
from celery_lowkiq.rules.views import HeldId, Page, PausedId, SearchPage, ShardsPage, Stats

from .changes import begin, call_off, operation_of
from .endpoints import AFTER, DEFAULT_LIMIT, ID, LIMIT, MAX_LIMIT, QUEUE, TEXT, Endpoint, Query, json_response
from .errors import Refused
from .job_page import JOB
from .listing import MATCHED, SORTS, STATES, ListingQuery
from .openapi import MAX_WAIT, value_schema
from .operations import Operation
from .params import Params, body_of, field
from .site import plain_queue_of, queue_of, site_of


class LowkiqCounts(NamedTuple):
    """Counts of a queue in Lowkiq's form."""

    length: int
    morgue_length: int
    lag: float
    #: Shards that are not counted, since their masters are away.
    missing: int

    @classmethod
    def of(cls, stats: Stats) -> LowkiqCounts:
        return cls(stats.length, stats.morgue_length, stats.lag, stats.missing)


class LowkiqStats(NamedTuple):
    total: LowkiqCounts
    by_worker: Mapping[str, LowkiqCounts]


class Shards(NamedTuple):
    """The shards of a queue with hints, the Unix time (s) of its pause, and the number of paused ids."""

    shards: tuple[ShardReport, ...]
    paused: float | None
    paused_ids: int
    hints: tuple[Hint, ...]


class Resharding(NamedTuple):
    """The migration of a queue to another number of shards; null without one."""

    migration: MigrationState | None


class Samples(NamedTuple):
    samples: tuple[Sample, ...]


class Nodes(NamedTuple):
    nodes: tuple[NodeReport, ...]


class Findings(NamedTuple):
    findings: tuple[Finding, ...]


def stats(request: Request) -> LowkiqStats:
    """Counts in Lowkiq's form: `total` and `by_worker`, each `length`, `morgue_length`, `lag`, `missing`."""
    found = site_of(request).inspector.partial().overview()
    by_queue = {name: LowkiqCounts.of(one) for name, one in found.by_queue.items()}
    return LowkiqStats(LowkiqCounts.of(found.total), by_queue)


def queues(request: Request) -> OverviewJson:
    """All queues with their counts; what is damaged, and which masters are away or deny a right."""
    return site_of(request).inspector.overview_json()


def listing(request: Request) -> SearchPage[Any]:
    """A page of jobs of a queue; pass its `next` as `after` for the following one."""
    name = request.url.path.rpartition("/")[2]
    return ListingQuery.of(Params.query(request), name).of_queue(queue_of(request))


def job(request: Request) -> PlacesJson:
    """Everything about one id: its jobs, why it is not running, and its tries."""
    return _places(queue_of(request), Params.query(request).text("id"))


def _places(queue: OrderedQueue, job_id: str) -> PlacesJson:
    return places_json(queue.job(job_id, **JOB), queue.why(job_id), queue.tries(job_id))


async def plain_job(request: Request) -> Response:
    """The same with payloads without masks; the audit log tells who reads them."""
    fields = await _fields(request)
    return await run_in_threadpool(_plain_job, request, fields)


def _plain_job(request: Request, fields: dict[str, Any]) -> Response:
    job_id = field(fields, "id", str)
    queue = plain_queue_of(request, field(fields, "queue", str), job_id)
    return json_response(_places(queue, job_id))


def shards(request: Request) -> Shards:
    """The shards of a queue, who has each, what is paused, and whether more shards would help."""
    queue = queue_of(request)
    paused, found = queue.paused(), queue.shards()
    return Shards(found, paused.queue, paused.ids, tuple(queue.shard_hints(found)))


def migration(request: Request) -> Resharding:
    """The move of a queue to another number of shards, and what each shard has left to move."""
    return Resharding(queue_of(request).migration())


def reshard_cost(request: Request) -> ReshardCost:
    """An estimate of what the action `reshard` would cost."""
    shards = SHARDS.read(Params.query(request).text(SHARDS.name))
    return queue_of(request).reshard_cost(shards)


def paused_ids(request: Request) -> ShardsPage[PausedId]:
    """A page of the paused ids of a queue."""
    return queue_of(request).paused_ids(after=Params.query(request).cursor())


def held_ids(request: Request) -> ShardsPage[HeldId]:
    """A page of the ids that a dead payload holds, the longest held first."""
    return queue_of(request).held_ids(after=Params.query(request).cursor())


def failures(request: Request) -> Failures:
    """The groups of failures of a queue, or the one with a fingerprint, each with an example."""
    return queue_of(request).failures(Params.query(request).text("failure", ""))


def matches(request: Request) -> Matches:
    """How many dead jobs, or waiting ones that failed, match a filter; the search is bounded."""
    params = Params.query(request)
    wanted = read_filter({one.name: params.text(one.name, "") for one in FILTERS})
    return queue_of(request).matching(wanted, dead=params.choice("list", MATCHED) == "morgue")


def history(request: Request) -> Samples:
    """Counters and lag of the last hour or day, of one queue or of all."""
    params, inspector = Params.query(request), site_of(request).inspector
    span = params.text("span", HOUR.name)
    if params.text("queue", ""):
        return Samples(queue_of(request).history(span))
    return Samples(inspector.history(span=span).total)


def nodes(request: Request) -> Nodes:
    """The nodes, their lanes, and what each runs."""
    return Nodes(tuple(site_of(request).inspector.nodes()))


def server(request: Request) -> ServerInfo:
    """What Redis reports about itself."""
    return site_of(request).inspector.server()


def masters(request: Request) -> Topology:
    """The masters of a cluster, or the only one, with the shards that each stores."""
    return site_of(request).inspector.topology()


def doctor(request: Request) -> Findings:
    """The results of the health checks, and what to do about them."""
    return Findings(site_of(request).inspector.doctor())


# -- changes


@dataclass(frozen=True)
class OperationJson:
    """A change: how far it is, and who began it."""

    id: str
    action: str
    queue: str
    user: str
    state: str
    count: int
    total: int
    began_at: float
    ended_at: float | None
    error: str

    @classmethod
    def of(cls, operation: Operation) -> OperationJson:
        progress = operation.state, operation.count, operation.total
        times = operation.began_at, operation.ended_at
        asked = operation.change
        return cls(operation.id, asked.action, asked.queue, asked.user, *progress, *times, operation.error)


class Operations(NamedTuple):
    operations: tuple[OperationJson, ...]


#: Fields of all changes; others are parameters of an action.
OF_CHANGES = ("action", "wait", "queue", "ids", "reason")


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
    values = {name: value for name, value in fields.items() if name not in OF_CHANGES}
    reason = field(fields, "reason", str, "")
    operation = begin(request, queue, action, action.target(queue, ids, values), reason)
    operation.wait(wait)
    return json_response(OperationJson.of(operation), 202 if operation.running else 200)


def audit(request: Request) -> Page[AuditEntry]:
    """The changes that people made, the latest first."""
    params = Params.query(request)
    limit = params.whole("limit", 1, MAX_LIMIT, DEFAULT_LIMIT)
    return site_of(request).audit.read(limit, params.cursor())


def operations(request: Request) -> Operations:
    """The changes of this process, newest first."""
    return Operations(tuple(map(OperationJson.of, site_of(request).operations.all())))


def operation(request: Request) -> OperationJson:
    """One change."""
    return OperationJson.of(operation_of(site_of(request), request.path_params["id"]))


def cancel(request: Request) -> OperationJson:
    """Stop a change after the step that runs."""
    found = operation_of(site_of(request), request.path_params["id"])
    call_off(request, found)
    return OperationJson.of(found)


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
        Query("state", {"enum": list(STATES[listing])}),
        Query("age", {"type": "string", "pattern": "^[<>][0-9]{1,9}(s|m|min|h|d)$"}),
        Query("failure", TEXT),
    )


def _listing(name: str) -> Endpoint:
    answer: Any = SearchPage[ShownDeadJob] if name == "morgue" else SearchPage[ShownJob]
    return Endpoint("GET", f"/{name}", listing, answer, (QUEUE, *_searches(name), LIMIT, AFTER))


ENDPOINTS = (
    Endpoint("GET", "/stats", stats, LowkiqStats),
    Endpoint("GET", "/queues", queues, OverviewJson),
    *map(_listing, SORTS),
    Endpoint("GET", "/job", job, PlacesJson, (QUEUE, ID)),
    Endpoint("POST", "/job", plain_job, PlacesJson, body="JobId"),
    Endpoint("GET", "/shards", shards, Shards, (QUEUE,)),
    Endpoint("GET", "/migration", migration, Resharding, (QUEUE,)),
    Endpoint(
        "GET",
        "/reshard_cost",
        reshard_cost,
        ReshardCost,
        (QUEUE, Query(SHARDS.name, value_schema(SHARDS), True)),
    ),
    Endpoint("GET", "/paused_ids", paused_ids, ShardsPage[PausedId], (QUEUE, AFTER)),
    Endpoint("GET", "/held_ids", held_ids, ShardsPage[HeldId], (QUEUE, AFTER)),
    Endpoint("GET", "/failures", failures, Failures, (QUEUE, Query("failure", TEXT))),
    Endpoint(
        "GET",
        "/matches",
        matches,
        Matches,
        (
            QUEUE,
            Query("list", {"enum": list(MATCHED)}, required=True),
            *(Query(one.name, value_schema(one)) for one in FILTERS),
        ),
    ),
    Endpoint(
        "GET", "/history", history, Samples, (Query("queue", TEXT), Query("span", {"enum": list(SPANS)}))
    ),
    Endpoint("GET", "/nodes", nodes, Nodes),
    Endpoint("GET", "/redis", server, ServerInfo),
    Endpoint("GET", "/masters", masters, Topology),
    Endpoint("GET", "/doctor", doctor, Findings),
    Endpoint("POST", "/changes", change, OperationJson, body="Change"),
    Endpoint("GET", "/audit", audit, Page[AuditEntry], (LIMIT, AFTER)),
    Endpoint("GET", "/operations", operations, Operations),
    Endpoint("GET", "/operations/{id}", operation, OperationJson),
    Endpoint("DELETE", "/operations/{id}", cancel, OperationJson, status=202),
)


# -- health


def healthz(_: Request) -> Response:
    """The process answers."""
    return json_response({"status": "ok"})


def readyz(request: Request) -> Response:
    """Redis answers, too."""
    site_of(request).inspector.server()
    return json_response({"status": "ok"})
