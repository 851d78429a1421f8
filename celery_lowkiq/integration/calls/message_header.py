"""What a call says in its header ``lowkiq``: by name, from any app and language, or in a canvas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any

from celery.utils.saferepr import saferepr

from celery_lowkiq.integration.records.call_record import HEADER
from celery_lowkiq.rules.errors import InvalidCall

from .validation import SHOWN, Entry, read_priority, read_score, read_time

#: What a sender may say; its app adds when it sent the message (Unix s) with lowkiq_message_score="sent".
WORDS = ("score", "perform_in", "priority")
SENT = "sent"


@dataclass(frozen=True)
class Asked:
    """Checked; what is None was not said."""

    score: float | None = None
    perform_in: float | None = None
    priority: int | None = None
    #: Unix time (s) of the sender's clock.
    sent: float | None = None

    def added_to(self, entry: Entry) -> Entry:
        """The call with what its header says. Raises InvalidCall for what is said twice."""
        given = {"score": entry.score, "priority": entry.priority}
        given["perform_in"] = entry.delay if entry.perform_in is None else entry.perform_in
        asked = {name: value for name in WORDS if (value := getattr(self, name)) is not None}
        for name, value in asked.items():
            if given[name] is not None:
                raise InvalidCall(
                    f"headers={{'{HEADER}': {{{name!r}: {value!r}}}}} is invalid: expected no {name} beside "
                    f"that of the call, {given[name]!r}. Take one of them out"
                )
        return replace(entry, **asked) if asked else entry


NOTHING = Asked()


def asked_in(headers: Mapping[str, Any], tz: tzinfo | None) -> Asked:
    """What the headers of a call say. Raises InvalidCall."""
    said = headers.get(HEADER)
    if said is None:
        return NOTHING
    if not isinstance(said, Mapping) or said.keys() - {*WORDS, SENT}:
        raise InvalidCall(
            f"headers={{'{HEADER}': {saferepr(said, SHOWN)}}} is invalid: expected a mapping with the keys "
            f"{', '.join(WORDS)}. Other headers of a call stand beside {HEADER!r}"
        )
    times = {name: said[name] for name in ("perform_in", SENT) if said.get(name) is not None}
    return Asked(
        read_score(said.get("score"), tz),
        priority=read_priority(said.get("priority")),
        **{name: read_time(name, value, tz) for name, value in times.items()},
    )


def take_asked(options: dict[str, Any], tz: tzinfo | None) -> Asked:
    """What a call's options say in its header, which is taken out of them. Raises InvalidCall."""
    headers = options.get("headers") or {}
    if HEADER not in headers:
        return NOTHING
    rest = {name: value for name, value in options.pop("headers").items() if name != HEADER}
    if rest:
        options["headers"] = rest
    return asked_in(headers, tz)
