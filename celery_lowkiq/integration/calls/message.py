"""Reads a call from Celery's message, and from its header ``lowkiq``.

A call by name gives its score, time and priority in that header, from any app and language, or in a canvas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from celery.utils.saferepr import saferepr

from celery_lowkiq.integration.records.call_record import HEADER
from celery_lowkiq.integration.records.known_headers import usable
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.validators import invalid

from .validation import SHOWN, Entry, read_priority, read_score, read_time

NO_PROPERTIES: Mapping[str, Any] = {}
#: Keys of the header ``lowkiq``.
WORDS = ("score", "perform_in", "priority")
#: Key that the sender's app adds with lowkiq_message_score="sent": when it sent the message (Unix s).
SENT = "sent"


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

    Raises InvalidCall for any other body, and for an ``expires`` that is no time.
    """
    if not isinstance(body, dict):
        if not isinstance(body, (list, tuple)) or len(body) != 3:
            raise InvalidCall(
                f"body={saferepr(body, SHOWN)} is invalid: expected [args, kwargs, embed], as Celery sends it"
            )
        args, kwargs, embedded = body
        if embedded is not None and not isinstance(embedded, Mapping):
            raise InvalidCall(f"embed={saferepr(embedded, SHOWN)} is invalid: expected a mapping or null")
        return MessagedCall(args, kwargs, embedded or {}, _checked(headers or {}), properties)
    embed = {name: body.get(name) for name in ("callbacks", "errbacks", "chord")}
    own = {name: body.get(name) for name in ("id", "eta", "expires", "timelimit")} | {
        "group": body.get("taskset")
    }
    return MessagedCall(body.get("args"), body.get("kwargs"), embed, _checked({**headers, **own}), properties)


def _checked(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    checked = usable(headers)
    if checked is not headers and "expires" in headers.keys() - checked.keys():
        raise InvalidCall(invalid("expires", headers["expires"], "a time of ISO 8601 in the headers"))
    return checked


@dataclass(frozen=True)
class HeaderValues:
    """The checked values of the header ``lowkiq``; None: not given."""

    score: float | None = None
    perform_in: float | None = None
    priority: int | None = None
    #: Unix time (s) of the sender's clock.
    sent: float | None = None

    def added_to(self, entry: Entry) -> Entry:
        """The call with these values. Raises InvalidCall for a value that the call has already."""
        if self is NO_VALUES:
            return entry
        given = {"score": entry.score, "priority": entry.priority}
        given["perform_in"] = entry.delay if entry.perform_in is None else entry.perform_in
        values = {name: value for name in WORDS if (value := getattr(self, name)) is not None}
        for name, value in values.items():
            if given[name] is not None:
                raise InvalidCall(
                    f"headers={{'{HEADER}': {{{name!r}: {value!r}}}}} is invalid: expected no {name} beside "
                    f"that of the call, {given[name]!r}. Take one of them out"
                )
        return entry._replace(**values) if values else entry


NO_VALUES = HeaderValues()


def read_header(headers: Mapping[str, Any], tz: tzinfo | None) -> HeaderValues:
    """The values of the header ``lowkiq``. Raises InvalidCall."""
    given = headers.get(HEADER)
    if given is None:
        return NO_VALUES
    if not isinstance(given, Mapping) or given.keys() - {*WORDS, SENT}:
        raise InvalidCall(
            f"headers={{'{HEADER}': {saferepr(given, SHOWN)}}} is invalid: expected a mapping with the keys "
            f"{', '.join(WORDS)}. Other headers of a call stand beside {HEADER!r}"
        )
    times = {name: given[name] for name in ("perform_in", SENT) if given.get(name) is not None}
    return HeaderValues(
        read_score(given.get("score"), tz),
        priority=read_priority(given.get("priority")),
        **{name: read_time(name, value, tz) for name, value in times.items()},
    )


def take_header(options: dict[str, Any], tz: tzinfo | None) -> HeaderValues:
    """The same of a call's options, from which the header is taken out. Raises InvalidCall."""
    headers = options.get("headers") or {}
    if HEADER not in headers:
        return NO_VALUES
    rest = {name: value for name, value in options.pop("headers").items() if name != HEADER}
    if rest:
        options["headers"] = rest
    return read_header(headers, tz)
