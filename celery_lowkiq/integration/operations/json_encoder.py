"""The one encoder of records: dataclasses and named tuples as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from kombu.utils.json import JSONEncoder

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.reports import NodeReport
from celery_lowkiq.rules.text import nested_in_lists, shortened
from celery_lowkiq.rules.tracking import Counts, TrackerView

#: Longest ``repr`` of a value that JSON cannot hold, in characters.
LONGEST_REPR = 10_000
#: What an encoder raises for keys that JSON lacks, for circles, for numbers as NaN, and for depth.
UNWRITABLE = (TypeError, ValueError, RecursionError)
#: Properties that belong to the JSON of a record.
COMPUTED: dict[type, tuple[str, ...]] = {
    NodeReport: ("alive",),
    TrackerView: ("done",),
    Counts: ("total",),
}
#: Marks a field whose value is written as it is.
AS_IS = {"as_is": True}


class _Encoder(JSONEncoder):
    """Writes what no encoder knows as its ``repr``."""

    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return _repr(o)


def encode(value: Any) -> str:
    """A record as one line of JSON. What is not printable is escaped, so no text can forge a line, speak to a
    terminal or break an encoding.
    """
    return _line(plain(value))


def value_text(value: Any) -> str:
    """Any value as one line of JSON, or its ``repr`` when JSON cannot hold it."""
    try:
        return _line(value)
    except UNWRITABLE:
        return _repr(value)


def _line(value: Any) -> str:
    text = _Encoder(ensure_ascii=False, allow_nan=False).encode(value)
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    )


def plain(value: Any) -> Any:
    """A record in JSON's own types: a shard as ``queue/index``, numbers that JSON lacks as null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, ShardRef):
        return str(value)
    if is_dataclass(value):
        found = {f.name: _field(value, f.name, bool(f.metadata.get("as_is"))) for f in fields(value)}
        return {**found, **_computed(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {**{name: plain(one) for name, one in value._asdict().items()}, **_computed(value)}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _field(value: Any, name: str, as_is: bool) -> Any:
    found = getattr(value, name)
    return found if as_is else plain(found)


def _computed(value: Any) -> dict[str, Any]:
    return {name: plain(getattr(value, name)) for name in COMPUTED.get(type(value), ())}


def writable(value: Any) -> Any:
    """The value, or its ``repr`` when JSON cannot hold it."""
    try:
        _Encoder(ensure_ascii=False, allow_nan=False).encode(nested_in_lists(value))
    except UNWRITABLE:
        return _repr(value)
    return value


def _repr(value: Any) -> str:
    try:
        return shortened(repr(value), LONGEST_REPR)
    except Exception as error:  # noqa: BLE001 - the class is the user's
        return f"<{type(value).__name__} without a repr: {type(error).__name__}>"
