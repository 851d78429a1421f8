"""A call as Celery's message carries it, in protocol 2 or 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery.utils.saferepr import saferepr

from celery_lowkiq.rules.errors import InvalidCall

from .arguments import SHOWN

NO_PROPERTIES: Mapping[str, Any] = {}


@dataclass(frozen=True)
class MessagedCall:
    """A call in the parts of protocol 2."""

    args: Any
    kwargs: Any
    embed: Mapping[str, Any]
    headers: Mapping[str, Any]
    #: Of the message, as its producer was given them.
    properties: Mapping[str, Any] = field(default_factory=dict)


def read_call(body: Any, headers: Any, properties: Mapping[str, Any] = NO_PROPERTIES) -> MessagedCall:
    """Read a message of protocol 2, or of protocol 1, which many other clients send: all in the body.

    Raises InvalidCall for any other body.
    """
    if not isinstance(body, dict):
        if not isinstance(body, (list, tuple)) or len(body) != 3:
            raise InvalidCall(
                f"body={saferepr(body, SHOWN)} is invalid: expected [args, kwargs, embed], as Celery sends it"
            )
        args, kwargs, embedded = body
        if embedded is not None and not isinstance(embedded, Mapping):
            raise InvalidCall(f"embed={saferepr(embedded, SHOWN)} is invalid: expected a mapping or null")
        return MessagedCall(args, kwargs, embedded or {}, headers, properties)
    embed = {name: body.get(name) for name in ("callbacks", "errbacks", "chord")}
    own = {name: body.get(name) for name in ("id", "eta", "expires", "timelimit")} | {
        "group": body.get("taskset")
    }
    return MessagedCall(body.get("args"), body.get("kwargs"), embed, {**headers, **own}, properties)
