"""Strict readers of the fields of a request. Each raises InvalidCall for an invalid value."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import anyio
from starlette.requests import Request

from celery_lowkiq.integration.operations.action_parts import MAX_IDS
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.validators import is_whole, whole

from .errors import Refused

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
