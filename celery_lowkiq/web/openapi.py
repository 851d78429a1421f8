"""The description of the JSON API, made from the endpoints, the actions and the types of the records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from celery_lowkiq.integration.operations.action_parts import MAX_IDS, Action, Parameter
from celery_lowkiq.integration.operations.actions import ACTIONS
from celery_lowkiq.integration.operations.audit import MAX_REASON
from celery_lowkiq.integration.operations.json_records import COMPUTED, record_of
from celery_lowkiq.rules.models import ShardRef

from .endpoints import TEXT, Endpoint, ErrorJson, Query, Schema

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
            "schemas": {**schemas.named, **BODIES, "Change": _change()},
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


def _change() -> Schema:
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
