"""Records: packed values, cursors of listings and replies, as they are read and written."""

from __future__ import annotations

import base64
import binascii
import inspect
import math
import re
import traceback
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from celery_lowkiq.rules.errors import InvalidCall, LowkiqError, StoreError
from celery_lowkiq.rules.models import MAX_SHARDS, Job, Payload, Recorded
from celery_lowkiq.rules.policies import MOST_URGENT, NOT_ISOLATED, Isolation
from celery_lowkiq.rules.text import last_error_line

# Codec of the texts and replies that scripts and Python exchange; ``lib/`` has the Lua half.

#: Maximum bytes of an error in the log of tries.
MAX_TRY_BYTES = 160
_NUMBER = re.compile(rb"[-+.e\d]+|-?inf")
_ITEM = re.compile(rb"(\S+) (\d{0,18})([rR]?)((?:[sS]\S*)?) ")
_COUNT = re.compile(rb"\d{1,18}")
_HEAD = re.compile(rb"(\d{1,18})(?:@(\d{1,18}))?(?:#(\d))? (\S+) (-?\d{1,18}(?:\.\d{1,24})?) (\d{1,18}) ")
_USUAL = re.compile(
    rb"(\d{1,18})(?:@(\d{1,18}))? (\d{1,17}(?:\.\d{1,17})?) -1 0 (\d{1,17}(?:\.\d{1,17})?) (\d{0,18})([rR]?)"
    rb"((?:[sS]\S*)?) "
)
_RECORDED = {each.value.encode(): each for each in Recorded}
_TRIED = re.compile(rb"-?\d{1,18}(?:\.\d{1,24})?")


def number_text(value: float) -> str:
    """Format a number without loss for Lua and Redis; -0.0 becomes 0."""
    return repr(float(value) + 0.0).removesuffix(".0")


def _number(text: bytes) -> float | None:
    try:
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) or text.endswith(b"inf") else None


def parse_items(record: bytes) -> tuple[Payload, ...]:
    """Parse a packed record: payloads by ascending score. Unreadable bytes become one payload."""
    items: list[Payload] = []
    at = 0
    while at < len(record):
        found = _ITEM.match(record, at)
        score = _number(found.group(1)) if found else None
        if found is None or score is None:
            items.append(Payload(record[at:], 0.0))
            break
        stop = found.end() + int(found.group(2)) if found.group(2) else len(record)
        data, flag, signature = record[found.end() : stop], found.group(3), found.group(4)
        items.append(Payload(data, score, _RECORDED[flag], None, signature))
        at = stop
    return tuple(items)


def parse_mark(mark: bytes) -> tuple[Recorded, bytes]:
    """Parse flag and signature of a payload."""
    flag = _RECORDED.get(mark[:1])
    return (Recorded.NONE, mark) if flag is None else (flag, mark[1:])


def parse_id(data: bytes) -> str:
    """Decode an id. Foreign bytes that are not UTF-8 survive a round trip."""
    return data.decode("utf-8", "surrogateescape")


def id_bytes(job_id: str) -> bytes:
    return job_id.encode("utf-8", "surrogateescape")


def parse_processing(job_id: bytes, record: bytes) -> Job:
    return _usual(job_id, record) or _any(job_id, record)


def _usual(job_id: bytes, record: bytes) -> Job | None:
    """Fast path: a job without failures and priority that has one payload; None for other records."""
    found = _USUAL.match(record)
    if found is None:
        return None
    claim, last_call, perform_in, score, length, flag, signature = found.groups()
    data = record[found.end() :]
    if length and len(data) != int(length):
        return None
    payload = Payload(data, float(score), _RECORDED[flag], None, signature)
    last = int(last_call) if last_call else 0
    return Job(parse_id(job_id), (payload,), float(perform_in), -1, None, int(claim), 1, last)


def _any(job_id: bytes, record: bytes) -> Job:
    found = _HEAD.match(record)
    perform_in = _number(found.group(4)) if found else None
    if found is None or perform_in is None:
        payloads = parse_items(record)
        return Job(parse_id(job_id), payloads, 0.0, payload_count=len(payloads))
    stop = found.end() + int(found.group(6))
    payloads = parse_items(record[stop:])
    retry_count, isolation = parse_retry_count(found.group(5))
    return Job(
        id=parse_id(job_id),
        payloads=payloads,
        perform_in=perform_in,
        retry_count=retry_count,
        error=record[found.end() : stop] or None,
        claim=int(found.group(1)),
        payload_count=len(payloads),
        last_call=int(found.group(2) or 0),
        priority=int(found.group(3) or MOST_URGENT),
        isolation=isolation,
    )


def retry_count_text(retry_count: int, isolation: Isolation) -> str:
    """Format a retry_count with the isolation of its job as the fraction (``claim.lua``)."""
    fraction = f".{isolation.largest:03d}{isolation.parts:03d}" if isolation.largest else ""
    return f"{retry_count}{fraction}"


def parse_retry_count(text: bytes) -> tuple[int, Isolation]:
    """Parse a retry_count and an isolation; -1 and NOT_ISOLATED for foreign data."""
    if not _TRIED.fullmatch(text):
        return -1, NOT_ISOLATED
    if b"." not in text:
        return int(text), NOT_ISOLATED
    retry_count = math.floor(float(text))
    largest, parts = divmod(round((float(text) - retry_count) * 1_000_000), 1000)
    return retry_count, Isolation(largest, max(1, parts)) if largest else NOT_ISOLATED


def try_text(error: str | None) -> bytes:
    """Return the line of an error for the log of a job's tries (``settle.lua``)."""
    words = " ".join(last_error_line(error or "").split())
    return words.encode("utf-8", "backslashreplace")[:MAX_TRY_BYTES]


def parse_whole(text: bytes) -> int:
    """Parse an epoch or a counter; 0 for foreign data, as in ``acquire.lua``."""
    return int(text) if re.fullmatch(rb"[1-9]\d{0,14}", text) else 0


def parse_moment(text: bytes | None) -> float | None:
    """Parse Unix s for display; None when missing, and for foreign data."""
    found = _number(text or b"")
    return found if found is not None and math.isfinite(found) else None


#: Below the negative of this, an id is held and paused; as BOTH in ``lib/waiting.lua``.
HELD_AND_PAUSED = 4294967296


def parse_pause(text: bytes) -> tuple[float | None, float | None]:
    """Return since when a death holds an id, and since when it is paused, of its entry in ``paused``."""
    number = parse_moment(text)
    if number is None or number >= 0:
        return None, number
    if number > -HELD_AND_PAUSED:
        return -number, None
    return -number - HELD_AND_PAUSED, -number - HELD_AND_PAUSED


def parse_time(text: bytes) -> float | None:
    """Parse the Unix s at which a job is due; None for the empty text. Raises ValueError for NaN."""
    time = float(text) if text else None
    if time is not None and math.isnan(time):
        raise ValueError(f"{text!r} is no time")
    return time


def seconds_of_time(time: Any) -> float:
    """Convert the reply of TIME to Unix s."""
    return float(time[0]) + float(time[1]) / 1_000_000


def parse_seconds(text: bytes) -> float:
    """Parse the Unix s of Redis's clock, or s to wait. Raises ValueError for one that is not finite."""
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is no time of a clock")
    return seconds


def parse_beats(reply: Any) -> list[tuple[dict[str, tuple[int, int]], str]]:
    """Parse the reply of ``heartbeat.lua``: of each queue, lanes and turn by owner, and its route."""
    members = [parse_members(each) for each in reply[0]]
    return [(members[place], parse_id(route)) for place, route in pairs(reply[1:])]


def parse_members(reply: Any) -> dict[str, tuple[int, int]]:
    """Parse the hash of heartbeats: lanes and turn by owner, without foreign data."""
    found = {}
    for field, counter in pairs(reply):
        owner, _, lanes = field.rpartition(b" ")
        if owner and _COUNT.fullmatch(lanes) and _COUNT.fullmatch(counter):
            found[owner.decode("utf-8", "replace")] = (int(lanes), int(counter))
    return found


def pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    """Return ``[(a, b), (c, d)]`` for ``[a, b, c, d]``."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def member_scores(reply: list[Any]) -> list[tuple[bytes, Any]]:
    """Return (member, score) pairs; redis-py replies with pairs or a flat list, by version and command."""
    nested = reply and isinstance(reply[0], (tuple, list))
    return [(member, score) for member, score in reply] if nested else pairs(reply)


def parse_payloads(values: list[Any]) -> tuple[Payload, ...]:
    """Parse score, size, signature and data of each payload; data may be cut."""
    parts = zip(values[::4], values[1::4], values[2::4], values[3::4], strict=True)
    return tuple(
        Payload(data, float(score), cut_from=size if len(data) < size else None, signature=signature)
        for score, size, signature, data in parts
    )


def shortened(job: Job, payload_limit: int, cut: int) -> Job:
    """Return the job with at most ``payload_limit`` payloads of at most ``cut`` bytes."""
    return job._replace(payloads=tuple(_cut(payload, cut) for payload in job.payloads[:payload_limit]))


def _cut(payload: Payload, cut: int) -> Payload:
    size = len(payload.data)
    return payload if size <= cut else payload._replace(data=payload.data[:cut], cut_from=size)


# Cursors of listings: opaque text for callers.
#
# A cursor is a number and the bytes behind it: the score and the member of a sorted index, or the place of a
# scan or a list. Behind ``~`` it has the shards that the pages until there lack.

MISSING = "~"
#: Largest place.
LAST_PLACE = 10**15


def dump_cursor(number: float, rest: bytes = b"") -> str:
    return base64.urlsafe_b64encode(number_text(number).encode() + b" " + rest).decode()


def load_cursor(cursor: str) -> tuple[float, bytes]:
    """Decode a cursor without the missing shards. Raises InvalidCall."""
    try:
        place, _, _ = cursor.partition(MISSING)
        text, _, rest = base64.urlsafe_b64decode(place.encode()).partition(b" ")
        number = float(text)
        if math.isnan(number):
            raise ValueError(text)
        return number, rest
    except (ValueError, binascii.Error):
        raise not_a_cursor(cursor) from None


def load_place(cursor: str) -> tuple[int, bytes]:
    """Decode a cursor whose number is a place. Raises InvalidCall."""
    number, rest = load_cursor(cursor)
    if not (0 <= number < LAST_PLACE and number.is_integer()):
        raise not_a_cursor(cursor)
    return int(number), rest


def dump_missing(cursor: str, shards: Collection[int]) -> str:
    """Add to a cursor which shards the pages until there lack."""
    bits = sum(1 << index for index in shards)
    text = base64.urlsafe_b64encode(bits.to_bytes(max(shards) // 8 + 1, "little")).decode()
    return f"{cursor}{MISSING}{text}"


def load_missing(cursor: str) -> frozenset[int]:
    """Decode which shards the pages until a cursor lack. Raises InvalidCall."""
    _, _, text = cursor.partition(MISSING)
    try:
        bits = int.from_bytes(base64.urlsafe_b64decode(text.encode()), "little")
    except (ValueError, binascii.Error):
        raise not_a_cursor(cursor) from None
    if bits.bit_length() > MAX_SHARDS:
        raise not_a_cursor(cursor)
    return frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)


def not_a_cursor(text: str) -> InvalidCall:
    """Return the error of a cursor that no listing has returned."""
    return InvalidCall(
        f"after={text!r} is invalid: expected a cursor of this listing. Pass `next` of the previous page"
    )


# Replies that cannot be read: data in Redis is foreign, or something else answers in its place.

T = TypeVar("T")

#: Errors of readers for unexpected replies, redis-py's own parser among them (arrays in arrays
#: without end); some errors of the package are ValueErrors, too.
UNREADABLE = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    MemoryError,
)


class UnexpectedReply(StoreError):
    """Redis sent a reply that cannot be read. Writes may or may not have happened."""

    def __init__(self, error: BaseException) -> None:
        (frame,) = traceback.extract_tb(error.__traceback__, limit=-1)
        super().__init__(
            f"Redis sent a reply that cannot be read: {error!r:.200} ({Path(frame.filename).name}, line "
            f"{frame.lineno}). Its data is foreign, or something else answers in its place"
        )


def reads_replies(target: T) -> T:
    """Have a function, or the public methods of a class, raise UnexpectedReply for what they fail to read."""
    if not inspect.isclass(target):
        return _reading(target)  # type: ignore[no-any-return]
    for name, method in list(vars(target).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(target, name, _reading(method))
    return target


def read_or_error(read: Callable[[], T]) -> T | StoreError:
    """Return what ``read`` returns, or its error as a StoreError."""
    try:
        return read()
    except LowkiqError as error:
        return error if isinstance(error, StoreError) else StoreError(str(error))
    except UNREADABLE as error:
        if _is_ours(error):
            raise
        return UnexpectedReply(error)


def raise_unexpected(error: BaseException) -> None:
    """Raise UnexpectedReply for an error of UNREADABLE, unless it is about the call."""
    if not _is_ours(error):
        raise UnexpectedReply(error) from error


def _is_ours(error: BaseException) -> bool:
    """True if it is about the call: one of the package, or of arguments that do not fit the function."""
    frame = error.__traceback__
    return isinstance(error, LowkiqError) or frame is None or frame.tb_next is None


def _reading(function: Any) -> Any:
    @wraps(function)
    def read(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UNREADABLE as error:
            raise_unexpected(error)
            raise

    @wraps(function)
    def read_each(*args: Any, **kwargs: Any) -> Any:
        try:
            yield from function(*args, **kwargs)
        except UNREADABLE as error:
            raise_unexpected(error)
            raise

    return read_each if inspect.isgeneratorfunction(function) else read
