"""The declaration of an endpoint: the routes and the description of the JSON API are made from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from celery_lowkiq.integration.operations.json_records import encode

from .formatting import MAX_TEXT

Schema = dict[str, Any]

#: Path of all endpoints.
BASE = "/api/v1"
DEFAULT_LIMIT, MAX_LIMIT = 50, 500


@dataclass(frozen=True)
class ErrorJson:
    """What went wrong, in one sentence."""

    error: str


def json_response(record: Any, status: int = 200) -> Response:
    """A response with a record as its body."""
    return Response(encode(record, MAX_TEXT), status, media_type="application/json")


@dataclass(frozen=True)
class Query:
    """A parameter in the query of a request."""

    name: str
    schema: Schema
    required: bool = False


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
        """What it does: the first line of the docstring of ``run``."""
        return (inspect.getdoc(self.run) or "").partition("\n")[0].removesuffix(".")

    @property
    def route(self) -> Route:
        """The Starlette route."""
        run = self.run if inspect.iscoroutinefunction(self.run) else self._serve
        return Route(f"{BASE}{self.path}", run, methods=[self.method])

    def _serve(self, request: Request) -> Response:
        return json_response(self.run(request), self.status)


TEXT: Schema = {"type": "string"}
QUEUE = Query("queue", TEXT, required=True)
ID = Query("id", TEXT, required=True)
LIMIT = Query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT})
AFTER = Query("after", TEXT)
