"""The JSON API and its description."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from celery_lowkiq.integration.actions import ACTIONS, FILTERS, MAX_IDS, SHARDS, Action, Parameter, action_of
from celery_lowkiq.integration.audit import MAX_REASON, AuditEntry
from celery_lowkiq.integration.json_records import (
    COMPUTED,
    OverviewJson,
    PlacesJson,
    ShownDeadJob,
    ShownJob,
    places_json,
    record_of,
)
from celery_lowkiq.integration.queue import Failures, Matches, OrderedQueue, read_filter
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.health import Hint
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.resharding import MigrationState, ReshardCost
from celery_lowkiq.rules.topology import ServerInfo, Topology
from celery_lowkiq.rules.views import (
    HOUR,
    SPANS,
    Finding,
    HeldId,
    NodeReport,
    Page,
    PausedId,
    Sample,
    SearchPage,
    ShardReport,
    ShardsPage,
    Stats,
)
from celery_lowkiq.web.changes import JOB, begin, call_off, operation_of
from celery_lowkiq.web.endpoints import (
    AFTER,
    DEFAULT_LIMIT,
    ID,
    LIMIT,
    MATCHED,
    MAX_LIMIT,
    QUEUE,
    SORTS,
    STATES,
    TEXT,
    Endpoint,
    ErrorJson,
    ListingQuery,
    Params,
    Query,
    Schema,
    body_of,
    field,
    json_response,
)
from celery_lowkiq.web.errors import Operation, Refused
from celery_lowkiq.web.site import plain_queue_of, queue_of, site_of

# The description of the JSON API, made from the endpoints, the actions and the types of the records.

#: Maximum time (s) that a response waits for the end of a change.
MAX_WAIT = 30.0
PLAIN: dict[Any, Schema] = {
    Any: {},
    str: TEXT,
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    # JSON has no infinity.
    float: {"type": ["number", "null"]},
    NoneType: {"type": "null"},
    ShardRef: {**TEXT, "description": "queue/index"},
}
ERRORS = {
    400: "the request is invalid",
    401: "a name and a password are required",
    403: "not allowed",
    404: "not found",
    409: "the queue is moving, or was moved, to another number of shards",
    503: "Redis does not answer",
}
CHANGE_ERRORS = {
    413: "the request is too large",
    415: "the request is not JSON",
    422: "the payload is too large",
    429: "too many operations run",
}


#: Bodies of requests but changes.
BODIES: dict[str, Schema] = {
    "JobId": {"type": "object", "properties": {"queue": TEXT, "id": TEXT}, "required": ["queue", "id"]}
}


class Schemas:
    """Schemas of types; those of records are named and collected."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type."""
        origin, args = get_origin(kind), get_args(kind)
        if kind in PLAIN:
            return PLAIN[kind]
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(arg) for arg in args]}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1]) if args else {}}
        if origin is not None and issubclass(origin, Sequence) and not hasattr(origin, "_fields"):
            return {"type": "array", "items": self.of(args[0])}
        if origin is None and issubclass(kind, Enum):
            return {"enum": [one.value for one in kind]}
        return self._record(origin or kind, args)

    def _record(self, kind: type, args: tuple[Any, ...]) -> Schema:
        """``Page[ShownJob]`` is named SearchPage, ``PayloadJson`` Payload."""
        written = get_type_hints(record_of.dispatch(kind))["return"]
        kind = kind if written is Any else written
        name = "".join(one.__name__.removeprefix("Shown").removesuffix("Json") for one in (*args, kind))
        if name not in self.named:
            self.named[name] = {}  # a record may contain itself
            properties = {field: self.of(_filled(hint, args)) for field, hint in _hints(kind).items()}
            self.named[name] |= {"type": "object", "properties": properties, "required": list(properties)}
        return {"$ref": f"#/components/schemas/{name}"}


def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind)] if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]
    computed = {name: get_type_hints(getattr(kind, name).fget)["return"] for name in COMPUTED.get(kind, ())}
    return {name: hints[name] for name in names} | computed


def _filled(hint: Any, args: tuple[Any, ...]) -> Any:
    """``tuple[T, ...]`` of a generic record with its argument."""
    if args and any(isinstance(one, TypeVar) for one in get_args(hint)):
        return hint[args]
    return hint


def description(base: str, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document; ``base`` is the path of the API."""
    schemas, paths = Schemas(), dict[str, Schema]()
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    schemas.of(ErrorJson)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "celery-lowkiq",
            "version": "1",
            "description": "Ordered queues: reads and actions.",
        },
        "servers": [{"url": base}],
        "paths": paths,
        "components": {
            "schemas": {**schemas.named, **BODIES, "Change": _change_schema()},
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"basic": []}, {}],
    }


def _operation(one: Endpoint, schemas: Schemas) -> Schema:
    in_path = [Query(name, TEXT, required=True) for name in re.findall(r"{(\w+)}", one.path)]
    parameters = [_parameter(query, "path") for query in in_path]
    parameters += [_parameter(query, "query") for query in one.query]
    answers = {one.status: _answer(one.text, schemas.of(one.answer))}
    errors = ERRORS | (CHANGE_ERRORS if one.body else {})
    answers |= {code: _answer(said, schemas.of(ErrorJson)) for code, said in errors.items()}
    found: Schema = {"summary": one.text, "parameters": parameters}
    if one.body == "Change":
        answers[202] = _answer("The change is running: read or cancel its operation", schemas.of(one.answer))
    if one.body:
        body = {"$ref": f"#/components/schemas/{one.body}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return {**found, "responses": {str(code): answer for code, answer in answers.items()}}


def _answer(text: str, schema: Schema) -> Schema:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _parameter(query: Query, where: str) -> Schema:
    return {"name": query.name, "in": where, "required": query.required, "schema": query.schema}


#: Why, for the audit log.
REASON: Schema = {"type": "string", "maxLength": MAX_REASON}


def _change_schema() -> Schema:
    """The body of a change: what all actions take."""
    taken = {one.name: value_schema(one) for action in ACTIONS.values() for one in action.takes}
    ids = {"type": "array", "items": TEXT, "maxItems": MAX_IDS}
    wait = {"type": "number", "minimum": 0, "maximum": MAX_WAIT, "description": "seconds to wait for its end"}
    lines = [
        f"- `{one.name}` ({', '.join(_taken(one)) or 'nothing else'}): {one.effect}"
        for one in ACTIONS.values()
    ]
    return {
        "type": "object",
        "properties": {
            "queue": TEXT,
            "action": {"enum": list(ACTIONS)},
            "ids": ids,
            **taken,
            "wait": wait,
            "reason": REASON,
        },
        "required": ["queue", "action"],
        "additionalProperties": False,
        "description": "Actions and what they take:\n\n" + "\n".join(lines),
    }


def _taken(action: Action) -> list[str]:
    """Names of what an action takes, with a question mark for what may be left out."""
    return [*sorted(action.needs), *(f"{one.name}?" for one in action.optional)]


def value_schema(parameter: Parameter) -> Schema:
    """The schema of a parameter of an action."""
    bounds = {"minimum": parameter.minimum, "maximum": parameter.maximum} if parameter.kind is int else {}
    return {**PLAIN.get(parameter.kind, {}), **bounds, "description": parameter.text}


# The JSON API: everything that the pages can do.


class LowkiqCounts(NamedTuple):
    """Counts of a queue in Lowkiq's form."""

    length: int
    morgue_length: int
    lag: float
    #: Shards that are not counted, since their masters are unreachable.
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
    """All queues with their counts; what is damaged, and which masters are unreachable or deny a right."""
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
