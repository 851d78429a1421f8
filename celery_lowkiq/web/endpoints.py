"""Endpoints and their parameters, and pages of a listing."""

from __future__ import annotations

import inspect
import math
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
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.failures import ANY, DEAD_STATES, WAITING_STATES, FailureFilter
from celery_lowkiq.rules.validators import is_whole, whole
from celery_lowkiq.rules.views import SearchPage
from celery_lowkiq.web.errors import Refused
from celery_lowkiq.web.formatting import MAX_TEXT

# The declaration of an endpoint: the routes and the description of the JSON API are made from it.

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


# Strict readers of the fields of a request. Each raises InvalidCall for an invalid value.

#: Maximum size of a body in bytes: a payload of 1 MiB, form-encoded.
MAX_BODY = 4 * 1024 * 1024
#: Seconds in which the body must have come.
BODY_SECONDS = 30.0
SHOWN = 100
#: Maximum length of a cursor; those of listings are shorter.
MAX_CURSOR = 1200


class Params:
    """Fields of a query, a form or a JSON object."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._fields = fields

    @classmethod
    def query(cls, request: Request) -> Params:
        return cls(request.query_params.multi_items())

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
        value = self.text(name, default)
        if value not in allowed:
            names = ", ".join(filter(None, allowed))
            raise InvalidCall(f"{name}={_short(value)} is invalid: expected one of {names}")
        return value

    def whole(self, name: str, low: int, high: int, default: int) -> int:
        text = self.text(name, "") or str(default)
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
        if number is None or not is_whole(number, low, high):
            raise InvalidCall(f"{name}={_short(text)} is invalid: expected {whole(low, high).expected}")
        return number

    def number(self, name: str) -> float | None:
        """Return a number; None for an empty or missing field."""
        text = self.text(name, "")
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidCall(f"{name}={_short(text)} is invalid: expected a number")
        return number

    def flag(self, name: str) -> bool:
        return self.choice(name, ("", "0", "1", "false", "true"), "") in ("1", "true")

    def cursor(self) -> str | None:
        """Return the cursor of a listing; None for its first page."""
        after = self.text("after", "")
        if len(after) > MAX_CURSOR:
            raise InvalidCall(f"after={_short(after)} is invalid: expected the `next` of a page")
        return after or None


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
            f"content type {_short(kind)} is invalid: expected application/x-www-form-urlencoded", 415
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
        raise InvalidCall(f"{name}={_short(value)} is invalid: expected {KINDS[kind]}")
    return _float(name, value) if kind is float else value


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidCall(f"{name}={_short(value)} is invalid: expected a smaller number") from None


def _short(value: Any) -> str:
    return repr(value)[:SHOWN]


# The listings of a queue, and the query of one page.

#: Payloads of each job that a listing reads, and bytes of each payload.
LISTED = {"payload_limit": 3, "payload_bytes": 2048}
#: Sort keys of each listing; the first is the default.
SORTS: dict[str, tuple[str, ...]] = {
    "jobs": ("perform_in", "id"),
    "retries": ("retry_count",),
    "morgue": ("updated_at", "id"),
    "processing": ("claim",),
}
#: States that a listing filters by.
STATES: dict[str, tuple[str, ...]] = {
    "jobs": WAITING_STATES,
    "retries": WAITING_STATES,
    "morgue": DEAD_STATES,
    "processing": (),
}
#: Ages that a page offers.
AGES = ("<1min", "<1h", "<1d", ">1min", ">1h", ">1d", ">7d")
#: Listings whose jobs a filter of failures may match.
MATCHED = ("morgue", "retries")


@dataclass(frozen=True)
class ListingQuery:
    """The query of one page of a listing."""

    listing: str
    by: str
    wanted: FailureFilter
    minimum: float | None
    maximum: float | None
    reverse: bool
    limit: int
    after: str | None
    #: Entries that the pages before have searched.
    searched: int

    @classmethod
    def of(cls, params: Params, listing: str) -> ListingQuery:
        """Raises InvalidCall."""
        sorts = SORTS[listing]
        return cls(
            listing=listing,
            by=params.choice("by", ("", *sorts), "") or sorts[0],
            minimum=params.number("minimum"),
            maximum=params.number("maximum"),
            reverse=params.flag("reverse"),
            limit=params.whole("limit", 1, MAX_LIMIT, DEFAULT_LIMIT),
            after=params.cursor(),
            wanted=FailureFilter(
                prefix=params.text("prefix", ""),
                state=params.choice("state", ("", *STATES[listing]), ""),
                age=params.text("age", ""),
                failure=params.text("failure", ""),
            ),
            searched=params.whole("searched", 0, 10**9 - 1, 0),
        )

    @property
    def sorts(self) -> tuple[str, ...]:
        return SORTS[self.listing]

    @property
    def query(self) -> dict[str, Any]:
        """The fields of the URL query, without the cursor."""
        return {
            "list": self.listing,
            "by": self.by if self.by != self.sorts[0] else None,
            "prefix": self.wanted.prefix,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "reverse": "1" if self.reverse else None,
            "limit": self.limit if self.limit != DEFAULT_LIMIT else None,
            **self.filters,
        }

    @property
    def filters(self) -> dict[str, str]:
        """The filters that no sort has."""
        return {"state": self.wanted.state, "age": self.wanted.age, "failure": self.wanted.failure}

    @property
    def narrows(self) -> bool:
        """Whether the listing leaves jobs out."""
        return self.wanted != ANY or self.has_range

    @property
    def has_range(self) -> bool:
        """Whether it is between two values of the sort, which no action takes."""
        return (self.minimum, self.maximum) != (None, None)

    @property
    def is_sorted(self) -> bool:
        """Whether the order or the range was chosen."""
        return self.by != self.sorts[0] or self.reverse or self.has_range

    @property
    def is_filtered(self) -> bool:
        """Whether anything of the form was chosen."""
        return self.wanted != ANY or self.is_sorted

    def of_queue(self, queue: OrderedQueue) -> SearchPage[Any]:
        """Raises InvalidCall and StoreError."""
        if self.listing == "processing":
            return queue.processing(limit=self.limit, after=self.after, **LISTED)
        options = {
            "prefix": self.wanted.prefix,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "reverse": self.reverse,
            "limit": self.limit,
            "after": self.after,
            **self.filters,
        }
        reads = queue.morgue if self.listing == "morgue" else queue.jobs
        return reads(self.by, **options, **LISTED)
