"""Endpoints, and the fields of their requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from celery_lowkiq.integration.actions import MAX_IDS
from celery_lowkiq.integration.json_records import encode
from celery_lowkiq.integration.reads import (
    ListingQuery,
    Query,
    chosen,
    flag,
    listing_parameters,
    short,
    whole_number,
)
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.web.errors import Refused
from celery_lowkiq.web.formatting import MAX_TEXT

# The declaration of an endpoint: the routes and the description of the JSON API are made from it.

#: Path of all endpoints.
BASE = "/api/v1"


@dataclass(frozen=True)
class ErrorJson:
    """An error, in one sentence."""

    error: str


def json_response(record: Any, status: int = 200) -> Response:
    return Response(encode(record, MAX_TEXT), status, media_type="application/json")


@dataclass(frozen=True)
class Endpoint:
    """An endpoint. ``run`` returns a record of the type ``answer``, or, if async, a response."""

    method: str
    path: str
    run: Callable[[Request], Any]
    answer: Any
    query: tuple[Query, ...] = ()
    status: int = 200
    #: Name of the schema of the body; "" without one.
    body: str = ""

    @property
    def text(self) -> str:
        """The first line of the docstring of ``run``."""
        return (inspect.getdoc(self.run) or "").partition("\n")[0].removesuffix(".")

    @property
    def route(self) -> Route:
        run = self.run if inspect.iscoroutinefunction(self.run) else self._serve
        return Route(f"{BASE}{self.path}", run, methods=[self.method])

    def _serve(self, request: Request) -> Response:
        return json_response(self.run(request), self.status)


# Strict readers of the fields of a request. Each raises InvalidCall for an invalid value.

#: Maximum size of a body in bytes: a payload of 1 MiB, form-encoded.
MAX_BODY = 4 * 1024 * 1024
#: Seconds in which the body must have come.
BODY_SECONDS = 30.0


class Params:
    """Fields of a path and its query, of a form or a JSON object."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._fields = fields

    @classmethod
    def query(cls, request: Request) -> Params:
        return cls([*request.path_params.items(), *request.query_params.multi_items()])

    def text(self, name: str, default: str | None = None) -> str:
        """Return the first value of a field. Without a default, the field is required."""
        for field, value in self._fields:
            if field == name:
                return value
        if default is None:
            raise InvalidCall(f"{name} is missing")
        return default

    def texts(self, name: str) -> tuple[str, ...]:
        """Return all values of a field."""
        return tuple(value for field, value in self._fields if field == name)

    def choice(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        return chosen(name, self.text(name, default), allowed)

    def flag(self, name: str) -> bool:
        return flag(name, self.text(name, ""))

    def value(self, query: Query) -> Any:
        return query.read(self.text(query.name, None if query.required else ""))


def listing_query(params: Params, listing: str) -> ListingQuery:
    """Return the query of a page of a listing. Raises InvalidCall."""
    values = {one.name: params.value(one) for one in listing_parameters(listing)}
    searched = whole_number("searched", params.text("searched", "") or "0", 0, 10**9 - 1)
    return ListingQuery(listing, values, searched)


async def body_of(request: Request) -> bytes:
    """Return the body. Raises Refused when it is too large or too slow."""
    parts, size = [], 0
    with anyio.move_on_after(BODY_SECONDS):
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY:
                raise Refused(f"the request is too large: expected at most {MAX_BODY} bytes", 413)
            parts.append(part)
        return b"".join(parts)
    raise Refused(f"the request did not end within {BODY_SECONDS:g} s", 408)


async def form_of(request: Request) -> Params:
    """Return the fields of a posted form. Raises Refused and InvalidCall."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(
            f"content type {short(kind)} is invalid: expected application/x-www-form-urlencoded", 415
        )
    text = (await body_of(request)).decode("utf-8", "replace")
    try:
        return Params(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_IDS + 20))
    except ValueError:
        raise InvalidCall(f"the form has too many fields: expected at most {MAX_IDS} ids") from None


#: Names of JSON's types in errors.
KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", list: "a list"}


def field(fields: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Return a field of a JSON object of a type, which is a key of KINDS."""
    value = fields.get(name, default)
    if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
        raise InvalidCall(f"{name}={short(value)} is invalid: expected {KINDS[kind]}")
    return _float(name, value) if kind is float else value


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidCall(f"{name}={short(value)} is invalid: expected a smaller number") from None
