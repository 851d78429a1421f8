"""The description of the JSON API."""

from __future__ import annotations

from typing import Any

from celery_lowkiq.rules.tracking import State

from .actions import ACTIONS, NEEDS
from .listing import DEFAULT_LIMIT, MAX_LIMIT, SORTS
from .params import MAX_IDS

Schema = dict[str, Any]

NUMBER: Schema = {"type": ["number", "null"]}
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(of: Schema) -> Schema:
    return {"anyOf": [of, {"type": "null"}]}


_LOWKIQS = _object(length=COUNT, morgue_length=COUNT, lag={"type": "number"})
_COUNTS = ("length", "fresh", "retries", "morgue_length", "busy", "processed", "failed", "held", "paused")
_PLACE = {"perform_in": NUMBER, "retry_count": COUNT, "updated_at": NUMBER, "held": FLAG, "priority": COUNT}
_RUNNING = _object(shard=TEXT, ids=_list(TEXT), count=COUNT, seconds={"type": "number"})
_LANE = _object(name=TEXT, shards=_list(TEXT), shard_count=COUNT, running=_or_null(_RUNNING))
_JOB = _object(
    id=TEXT, error={"type": ["string", "null"]}, payload_count=COUNT, payloads=_list(_named("Payload"))
)

SCHEMAS: dict[str, Schema] = {
    "Error": _object(error=TEXT),
    "LowkiqStats": _object(total=_LOWKIQS, by_worker={"type": "object", "additionalProperties": _LOWKIQS}),
    "Stats": _object(**dict.fromkeys(_COUNTS, COUNT), lag={"type": "number"}),
    "Queue": _object(name=TEXT, shards=COUNT, batch_size=COUNT, stats=_named("Stats")),
    "Queues": _object(
        total=_named("Stats"),
        queues=_list(_named("Queue")),
        damaged={"type": "object", "additionalProperties": TEXT},
    ),
    "Payload": _object(
        score=NUMBER, mark={"type": ["string", "null"]}, value={}, text=TEXT, size=COUNT, cut=FLAG
    ),
    "Job": {**_JOB, "properties": {**_JOB["properties"], **_PLACE}},
    "Page": _object(items=_list(_named("Job")), next={"type": ["string", "null"]}),
    "Places": _object(
        **{place: _or_null(_named("Job")) for place in ("waiting", "processing", "dead")},
        why=_object(kind=TEXT, text=TEXT, reasons=_list(_object(kind=TEXT, text=TEXT))),
        tries=_list(_object(at=NUMBER, retry_count=COUNT, node=TEXT, error=TEXT)),
    ),
    "Shards": _object(shards=_list(_named("Shard")), paused=NUMBER, paused_ids=COUNT),
    "Shard": _object(
        index=COUNT,
        stats=_named("Stats"),
        owner={"type": ["string", "null"]},
        alive=FLAG,
        since=NUMBER,
        paused_since=NUMBER,
        running=_or_null(_RUNNING),
    ),
    "PausedIds": _object(items=_list(_object(id=TEXT, since=NUMBER)), next={"type": ["string", "null"]}),
    "Samples": _object(samples=_list(_object(at=NUMBER, processed=COUNT, failed=COUNT))),
    "Nodes": _object(nodes=_list(_object(name=TEXT, alive=FLAG, quiet=FLAG, pid=COUNT, lanes=_list(_LANE)))),
    "Findings": _object(findings=_list(_object(level=TEXT, subject=TEXT, text=TEXT, advice=TEXT))),
    "Server": _object(kind=TEXT, version=TEXT, used_memory=COUNT, maxmemory_policy=TEXT),
    "Operation": _object(
        id=TEXT,
        action=TEXT,
        queue=TEXT,
        user=TEXT,
        state={"enum": ["running", "done", "cancelled", "failed"]},
        count=COUNT,
        total=COUNT,
        began_at={"type": "number"},
        ended_at=NUMBER,
        error=TEXT,
    ),
    "Operations": _object(operations=_list(_named("Operation"))),
    "Tracker": _object(
        id=TEXT,
        name=TEXT,
        opened_at={"type": "number"},
        closed=FLAG,
        cancelled=FLAG,
        done=FLAG,
        counts=_object(**{state.value: COUNT for state in State}, total=COUNT),
    ),
    "Trackers": _object(items=_list(_named("Tracker")), next={"type": ["string", "null"]}),
    "Call": _object(
        task_id=TEXT,
        queue=TEXT,
        id=TEXT,
        payload=TEXT,
        state={"enum": [state.value for state in State]},
        updated_at={"type": "number"},
        current=NUMBER,
        total=NUMBER,
        messages=_list(_object(at={"type": "number"}, state=TEXT, text=TEXT)),
    ),
    "Calls": _object(items=_list(_named("Call")), next={"type": ["string", "null"]}),
    "Change": {
        "type": "object",
        "properties": {
            "queue": TEXT,
            "action": {"enum": list(ACTIONS)},
            "ids": {"type": "array", "items": TEXT, "maxItems": MAX_IDS},
            "shard": {**COUNT, "minimum": 0},
            "mark": {**TEXT, "description": "of a payload, as the job shows it"},
            "value": {"description": "the new payload"},
            "wait": {"type": "number", "minimum": 0, "maximum": 30, "description": "s to wait for its end"},
        },
        "required": ["queue", "action"],
        "additionalProperties": False,
        "description": "Actions and what they take:\n\n"
        + "\n".join(
            f"- `{action.name}` ({', '.join(sorted(NEEDS[action.on])) or 'nothing else'}): {action.effect}"
            for action in ACTIONS.values()
        ),
    },
}

_ERRORS = {
    "400": "the request cannot be read",
    "401": "name and password are asked for",
    "403": "not allowed",
    "404": "there is no such thing",
    "503": "Redis does not answer",
}
_CHANGE_ERRORS = {
    "409": "the queue is stored with another number of shards",
    "413": "the request is too large",
    "415": "the request is not JSON",
    "422": "the payload is too large",
    "429": "too many operations run",
}


def _answer(text: str, schema: str) -> Schema:
    return {"description": text, "content": {"application/json": {"schema": _named(schema)}}}


def _parameter(name: str, schema: Schema, required: bool = False, where: str = "query") -> Schema:
    return {"name": name, "in": where, "required": required, "schema": schema}


def _operation(text: str, schema: str, *parameters: Schema, status: str = "200", **more: Any) -> Schema:
    answers = {status: _answer(text, schema)} | {
        code: _answer(said, "Error") for code, said in _ERRORS.items()
    }
    return {"summary": text, "parameters": list(parameters), "responses": answers, **more}


QUEUE = _parameter("queue", TEXT, required=True)


def _listing(name: str) -> Schema:
    bounds = [_parameter("minimum", {"type": "number"}), _parameter("maximum", {"type": "number"})]
    searches = [
        _parameter("by", {"enum": list(SORTS[name])}),
        _parameter("prefix", TEXT),
        *bounds,
        _parameter("reverse", {"enum": ["0", "1"]}),
    ]
    limit = {**COUNT, "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    return _operation(
        f"A page of a queue's {name}; pass its `next` as `after` for the following one",
        "Page",
        QUEUE,
        *(searches if name != "processing" else ()),
        _parameter("limit", limit),
        _parameter("after", TEXT),
    )


def _trackers() -> dict[str, Schema]:
    one = _parameter("id", TEXT, required=True, where="path")
    limit = {**COUNT, "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    page = (_parameter("limit", limit), _parameter("after", TEXT))
    state = _parameter("state", {"enum": ["", *(state.value for state in State)]})
    return {
        "/trackers": {"get": _operation("Tracked groups of calls, the latest first", "Trackers", *page)},
        "/trackers/{id}": {
            "get": _operation("One group and its counts", "Tracker", one),
            "delete": _operation("Calls that wait have ended as failed; what runs goes on", "Tracker", one),
        },
        "/trackers/{id}/calls": {
            "get": _operation("A page of a group's calls, as they came", "Calls", one, state, *page)
        },
    }


def _change() -> Schema:
    body = {"required": True, "content": {"application/json": {"schema": _named("Change")}}}
    found = _operation("The operation has ended; its `state` says how", "Operation", requestBody=body)
    found["summary"] = "Change something"
    found["responses"] |= {"202": _answer("It runs; watch it, or cancel it", "Operation")}
    found["responses"] |= {code: _answer(said, "Error") for code, said in _CHANGE_ERRORS.items()}
    return found


def _paths() -> dict[str, Schema]:
    one = _parameter("id", TEXT, required=True, where="path")
    cancels = _operation("It stops after the step that runs", "Operation", one, status="202")
    return {
        "/stats": {"get": _operation("Figures in Lowkiq's form", "LowkiqStats")},
        "/queues": {"get": _operation("All queues with their counts", "Queues")},
        **{f"/{name}": {"get": _listing(name)} for name in SORTS},
        "/job": {"get": _operation("Where an id is", "Places", QUEUE, _parameter("id", TEXT, required=True))},
        "/shards": {
            "get": _operation("The shards of a queue, who has each, and what is paused", "Shards", QUEUE)
        },
        "/paused_ids": {
            "get": _operation("A page of a queue's paused ids", "PausedIds", QUEUE, _parameter("after", TEXT))
        },
        "/history": {
            "get": _operation("What was done in the last hour", "Samples", _parameter("queue", TEXT))
        },
        "/nodes": {"get": _operation("The nodes and what each runs", "Nodes")},
        "/checkup": {"get": _operation("Whether all is well, and what to do where it is not", "Findings")},
        "/redis": {"get": _operation("What Redis says of itself", "Server")},
        "/changes": {"post": _change()},
        "/operations": {"get": _operation("The operations of this process", "Operations")},
        "/operations/{id}": {
            "get": _operation("One operation", "Operation", one),
            "delete": cancels,
        },
        **_trackers(),
    }


def description(base: str) -> dict[str, Any]:
    """The document; ``base`` is where the API lies."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "celery-lowkiq", "version": "1", "description": "Ordered queues: look and act."},
        "servers": [{"url": base}],
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"basic": []}, {}],
    }
