"""Calls: the arguments that callers give, checked and encoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, tzinfo
from numbers import Integral, Real
from typing import Any, TypedDict
from uuid import UUID

from celery.utils.time import maybe_iso8601

from celery_lowkiq.integration.codec import Codec
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Call
from celery_lowkiq.rules.policies import LEAST_URGENT, MOST_URGENT
from celery_lowkiq.rules.validators import is_whole

MAX_ID_BYTES = 256
#: Whole numbers that are ids are usually below this one.
USUAL_NUMBERS = 2**63
#: Unix s; the year 2286. A larger number was surely meant in milliseconds.
LATEST = 10_000_000_000.0
#: A score must be a number that a double holds exactly.
LARGEST_SCORE = 2**53
#: Maximum length of a wrong value in an error.
SHOWN = 100
#: Options of ``apply_async`` that are read here.
WORDS = ("score", "countdown", "eta", "priority")
#: Makes a named tuple of all its values, in half of the time of a call of its class.
_new = tuple.__new__
PRIORITIES = f"a whole number from {MOST_URGENT}, the most urgent, to {LEAST_URGENT}, or None"


class BulkEntry(TypedDict, total=False):
    """One call of ``perform_async``. ``id`` is required, unless the task has ``key=``."""

    id: str | int | UUID
    payload: Any
    score: float | datetime | None
    #: Unix time in s, or how long from now.
    perform_in: float | datetime | timedelta | None
    priority: int | None


KEYS = frozenset(BulkEntry.__annotations__)


def due_now(job_id: str, payload: Any, codec: Codec) -> Call:
    """A call with an id and a payload alone, as most are. Raises PayloadError."""
    return _new(Call, (job_id, codec.dump(payload), None, None, None, None, None, None, payload, None))


def single(
    job_id: Any,
    payload: Any,
    *,
    score: Any = None,
    eta: Any = None,
    countdown: Any = None,
    priority: Any = None,
    tz: tzinfo | None,
) -> Call:
    """A call with Celery's words, not encoded yet. Raises InvalidCall."""
    if eta is not None and countdown is not None:
        raise InvalidCall(f"countdown={countdown!r} and eta={eta!r} exclude each other: give one of them")
    delay = None if countdown is None else read_delay(countdown)
    when = None if eta is None else read_time("eta", eta, tz)
    return Call(
        read_id(job_id), b"", read_score(score, tz), when, delay, None, clamped(priority), payload=payload
    )


def bulk(
    jobs: Iterable[BulkEntry], codec: Codec, tz: tzinfo | None, key: Callable[[Any], Any] | None = None
) -> list[Call]:
    """Many calls with Lowkiq's words; ``key`` finds the id of a job that gives none.

    Raises InvalidCall or PayloadError, which says which job of the list is wrong.
    """
    if isinstance(jobs, (Mapping, str, bytes)) or not isinstance(jobs, Iterable):
        raise InvalidCall(
            f"perform_async takes a list of jobs, got {type(jobs).__name__}: write [{{'id': ...}}]"
        )
    calls: list[Call] = []
    for job in jobs:
        try:
            calls.append(_bulk_call(job, codec, tz, key))
        except InvalidCall as error:
            raise type(error)(f"job {len(calls)} of the list: {error}") from error.__cause__
    return calls


def id_of(key: Callable[[Any], Any], payload: Any) -> Any:
    """The id by the task's ``key``. Raises InvalidCall when the function fails."""
    try:
        return key(payload)
    except Exception as error:
        raise InvalidCall(
            f"key= finds no id in payload={_shown(payload)}: {type(error).__name__}: {error}"
        ) from error


def _bulk_call(job: BulkEntry, codec: Codec, tz: tzinfo | None, key: Callable[[Any], Any] | None) -> Call:
    # Most jobs have no other key: what follows takes more than twice as long, a seventh of a bulk call.
    if type(job) is dict and "id" in job and len(job) == 1 + ("payload" in job):
        return due_now(read_id(job["id"]), job.get("payload", ""), codec)
    if not isinstance(job, Mapping):
        raise InvalidCall(f"a job is a dict with the keys {sorted(KEYS)}, got {type(job).__name__}")
    unknown = job.keys() - KEYS
    keyed = key is not None and "id" not in job and "payload" in job
    if unknown or not ("id" in job or keyed):
        what = f"unknown key {sorted(map(str, unknown))[0]!r}" if unknown else "no 'id'"
        raise InvalidCall(
            f"{what}: a job has 'id', and may have 'payload', 'score', 'perform_in', 'priority'"
        )
    job_id = id_of(key, job["payload"]) if key is not None and keyed else job["id"]
    when = job.get("perform_in")
    delay = read_delay(when, "perform_in") if isinstance(when, timedelta) else None
    perform_in = None if when is None or delay is not None else read_time("perform_in", when, tz)
    score, priority = read_score(job.get("score"), tz), read_priority(job.get("priority"))
    job_id, payload = read_id(job_id), job.get("payload", "")
    return Call(job_id, codec.dump(payload), score, perform_in, delay, None, priority, payload=payload)


def read_id(value: Any, advice: str = "", name: str = "id") -> str:
    """Text of an id; ``name``: of its argument. Raises InvalidCall, with ``advice`` for another type."""
    # Nearly all are one of these.
    if type(value) is int and 0 <= value < USUAL_NUMBERS:
        return str(value)
    if type(value) is str and 0 < len(value) <= MAX_ID_BYTES and value.isascii() and value.isprintable():
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise InvalidCall(f"{name}={_shown(value)} is invalid: expected a str, an int or a UUID{advice}")
    text = _plain_text(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidCall(f"{name}={_shown(value)} is invalid: expected text that UTF-8 can encode") from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise InvalidCall(
            f"{name}={_shown(value)} is invalid: expected 1 to {MAX_ID_BYTES} bytes of UTF-8, not {size}"
        )
    if any(char < " " or "\x7f" <= char <= "\x9f" for char in text):
        raise InvalidCall(f"{name}={_shown(value)} is invalid: expected text without a control character")
    return text


def _plain_text(value: str | int | UUID) -> str:
    # The value of a member of an enum: its ``str`` depends on Python's version.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        # Longer than the longest id. Python limits the digits of a number that it prints.
        return int.__repr__(value) if abs(value) < 10**MAX_ID_BYTES else "9" * (MAX_ID_BYTES + 1)
    return str(value)


def read_score(value: Any, tz: tzinfo | None, name: str = "score") -> float | None:
    """A score; a datetime counts as its Unix time in s. Raises InvalidCall."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return _timestamp(value, tz)
    number = _real(name, value)
    if isinstance(value, Integral) and abs(int(value)) > LARGEST_SCORE:
        raise InvalidCall(
            f"{name}={_shown(value)} is no number that a double holds exactly (up to 2**53): divide it, "
            "for instance time_ns() by 1000"
        )
    return number


def is_priority(value: Any) -> bool:
    return is_whole(value, MOST_URGENT, LEAST_URGENT)


def read_priority(value: Any) -> int | None:
    """A priority, or None. Raises InvalidCall."""
    if value is None or is_priority(value):
        return value  # type: ignore[no-any-return]
    raise InvalidCall(f"priority={_shown(value)} is invalid: expected {PRIORITIES}")


def clamped(value: Any) -> int | None:
    """A priority of Celery's, which other brokers have more than ten of; None: none. Raises InvalidCall."""
    return min(max(value, MOST_URGENT), LEAST_URGENT) if is_whole(value) else read_priority(value)


def priority_of(properties: Mapping[str, Any]) -> int | None:
    """The priority of a message; None: it has none."""
    value = properties.get("priority")
    return clamped(value) if is_whole(value) else None


def read_time(name: str, value: Any, tz: tzinfo | None) -> float:
    """A Unix time in s; text is a time of ISO 8601. Raises InvalidCall."""
    if isinstance(value, str):
        value = _moment(name, value)
    number = _timestamp(value, tz) if isinstance(value, datetime) else _real(name, value)
    if number > LATEST:
        hint = " It looks like milliseconds: divide by 1000." if number < 1000 * LATEST else ""
        raise InvalidCall(
            f"{name}={_shown(value)} is invalid: expected a Unix time in seconds before the year 2286.{hint}"
        )
    if number < 0:
        raise InvalidCall(f"{name}={_shown(value)} is invalid: expected a Unix time in seconds from 0")
    return number


def read_delay(value: Any, name: str = "countdown") -> float:
    """Seconds from now; a negative number counts as 0. Raises InvalidCall."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else _real(name, value)
    if seconds > LATEST / 10:
        raise InvalidCall(f"{name}={_shown(value)} is invalid: expected seconds, at most 30 years")
    return max(0.0, seconds)


def _moment(name: str, text: str) -> datetime:
    try:
        moment = maybe_iso8601(text)
    except ValueError:
        moment = None
    if moment is None:
        expected = "a Unix time, a datetime, a timedelta or ISO 8601 text"
        raise InvalidCall(f"{name}={_shown(text)} is invalid: expected {expected}")
    return moment


def _timestamp(value: datetime, tz: tzinfo | None) -> float:
    """Unix time (s) of a datetime; a naive one is in the app's time zone, like Celery's."""
    return (value if value.tzinfo else value.replace(tzinfo=tz)).timestamp()


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidCall(f"{name}={_shown(value)} is invalid: expected a number or a datetime")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidCall(f"{name}={_shown(value)} is invalid: expected a finite number or a datetime")
    return number


def _shown(value: Any) -> str:
    """A wrong value in an error: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a number of too many digits, or a broken __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
