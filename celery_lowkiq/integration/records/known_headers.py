"""Known headers: those that the requests of a call read. Callers may send any value in them.

A known header of another type than its own is left out, and the call runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from celery.utils.time import maybe_iso8601

from celery_lowkiq.rules.links import FIELDS
from celery_lowkiq.rules.validators import run_limit

_Type: TypeAlias = type | tuple[type, ...]

#: The types. The last headers are always left out: a message has its links elsewhere, and the others are the
#: worker's.
KNOWN: Mapping[str, _Type] = {
    **dict.fromkeys(("group", "parent_id", "root_id", "reply_to", "shadow"), str),
    **dict.fromkeys(("argsrepr", "kwargsrepr", "origin", "taskset"), str),
    **dict.fromkeys(("group_index", "replaced_task_nesting", "retries"), int),
    **dict.fromkeys(("headers", "properties", "stamps"), Mapping),
    **dict.fromkeys(("stamped_headers", "timelimit"), (list, tuple)),
    **dict.fromkeys(("expires", "lowkiq_ttl_ends"), (str, datetime)),
    **dict.fromkeys(FIELDS, ()),
    **dict.fromkeys(("args", "kwargs", "correlation_id", "delivery_info", "hostname"), ()),
    **dict.fromkeys(("lowkiq_play", "lowkiq_run"), ()),
}


def usable(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers, without each known one that has another type than its own."""
    if not headers:
        return headers
    wrong = [
        name
        for name, value in headers.items()
        if value is not None
        and (kind := KNOWN.get(name)) is not None
        and not (isinstance(value, kind) and (name not in _CHECKS or _CHECKS[name](value)))
    ]
    return {name: value for name, value in headers.items() if name not in wrong} if wrong else headers


def _is_time(value: Any) -> bool:
    try:
        return maybe_iso8601(value) is not None
    except ValueError:
        return False


def _are_names(value: Any) -> bool:
    return all(isinstance(name, str) for name in value)


def _are_limits(value: Any) -> bool:
    """Whether the values are a hard and a soft time limit in s, or None for each."""
    return len(value) == 2 and all(map(run_limit.accepts, value))


#: Further checks of values of the right type.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "expires": _is_time,
    "lowkiq_ttl_ends": _is_time,
    "stamped_headers": _are_names,
    "timelimit": _are_limits,
}
