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

from celery_lowkiq.integration.actions import ACTIONS, MAX_IDS, Action, action_of
from celery_lowkiq.integration.audit import MAX_REASON
from celery_lowkiq.integration.json_records import (
    COMPUTED,
    PlacesJson,
    record_of,
)
from celery_lowkiq.integration.reads import QUEUE, READS, TEXT, Query, Read, Schema, places, schema_of
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.tracking import TrackerView
from celery_lowkiq.web.endpoints import Endpoint, ErrorJson, Params, body_of, field, json_response
from celery_lowkiq.web.errors import Refused
from celery_lowkiq.web.forms import begin, call_off, cancel_calls, operation_of
from celery_lowkiq.web.operations import Operation
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
    taken = {one.name: schema_of(one) for action in ACTIONS.values() for one in action.takes}
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


# The JSON API: everything that the pages can do.


def endpoint_of(read: Read) -> Endpoint:
    def run(request: Request) -> Any:
        params = Params.query(request)
        values = {one.name: params.value(one) for one in read.parameters}
        named = values.pop(QUEUE.name, "") or QUEUE in read.parameters
        of = queue_of(request) if named else site_of(request).inspector
        return read.run(of, **values)

    run.__doc__ = read.text
    query = tuple(one for one in read.parameters if f"{{{one.name}}}" not in read.name)
    return Endpoint("GET", f"/{read.name}", run, read.record, query)


async def plain_job(request: Request) -> Response:
    """The same with payloads without masks; the audit log records who reads them."""
    fields = await _fields(request)
    return await run_in_threadpool(_plain_job, request, fields)


def _plain_job(request: Request, fields: dict[str, Any]) -> Response:
    job_id = field(fields, "id", str)
    queue = plain_queue_of(request, field(fields, "queue", str), job_id)
    return json_response(places(queue, job_id))


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
        asked = operation.change
        return cls(
            id=operation.id,
            action=asked.action,
            queue=asked.queue,
            user=asked.user,
            state=operation.state,
            count=operation.count,
            total=operation.total,
            began_at=operation.began_at,
            ended_at=operation.ended_at,
            error=operation.error,
        )


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


def cancel_tracker(request: Request) -> TrackerView:
    """End the waiting calls of a tracker as failed; running ones go on."""
    return cancel_calls(request, request.path_params["id"]).view()


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


#: Endpoints that are no reads of the table, behind the endpoint that stands before each.
OTHERS: dict[str, tuple[Endpoint, ...]] = {
    "/job": (Endpoint("POST", "/job", plain_job, PlacesJson, body="JobId"),),
    "/doctor": (Endpoint("POST", "/changes", change, OperationJson, body="Change"),),
    "/audit": (
        Endpoint("GET", "/operations", operations, Operations),
        Endpoint("GET", "/operations/{id}", operation, OperationJson),
        Endpoint("DELETE", "/operations/{id}", cancel, OperationJson, status=202),
    ),
    "/trackers/{id}": (Endpoint("DELETE", "/trackers/{id}", cancel_tracker, TrackerView),),
}
ENDPOINTS: tuple[Endpoint, ...] = tuple(
    one for read in map(endpoint_of, READS) for one in (read, *OTHERS.get(read.path, ()))
)


# -- health


def healthz(_: Request) -> Response:
    """The process answers."""
    return json_response({"status": "ok"})


def readyz(request: Request) -> Response:
    """Redis answers, too."""
    site_of(request).inspector.server()
    return json_response({"status": "ok"})
