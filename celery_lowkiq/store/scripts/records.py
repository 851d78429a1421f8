"""The packed text that scripts and Python exchange; ``lib/`` has the Lua half."""

from __future__ import annotations

import math
import re
from typing import Any

from celery_lowkiq.rules.isolation import NOT_ISOLATED, Isolation
from celery_lowkiq.rules.models import Job, Payload, Recorded
from celery_lowkiq.rules.priorities import MOST_URGENT

#: A number of so many digits is one to Lua and Redis as well.
DIGITS = 18
_NUMBER = re.compile(rb"[-+.e\d]+|-?inf")
_ITEM = re.compile(rb"(\S+) (\d{1,18})([rR]?) ")
#: See docs/adr/0020-versioned-headers.md.
_HEADER = re.compile(rb"!1 (\d{1,18}) ")
_COUNT = re.compile(rb"\d{1,18}")
_HEAD = re.compile(rb"(\d{1,18})(?:@(\d{1,18}))?(?:#(\d))? (\S+) (-?\d{1,18}(?:\.\d{1,24})?) (\d{1,18}) ")
_TRIED = re.compile(rb"-?\d{1,18}(?:\.\d{1,24})?")


def number_text(value: float) -> str:
    """A number as Lua and Redis read it back without loss; -0.0 becomes 0."""
    return repr(float(value) + 0.0).removesuffix(".0")


def _number(text: bytes) -> float | None:
    """What ``payload_set_read.lua`` calls a number."""
    try:
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) or text.endswith(b"inf") else None


def parse_items(record: bytes) -> tuple[Payload, ...]:
    """Payloads of a packed record, smallest score first. Bytes that are no record become one payload."""
    items: list[Payload] = []
    header = _HEADER.match(record)
    at = header.end() + int(header.group(1)) if header else 0
    if at > len(record):
        at = 0
    while at < len(record):
        found = _ITEM.match(record, at)
        score = _number(found.group(1)) if found else None
        if found is None or score is None:
            items.append(Payload(record[at:], 0.0))
            break
        stop = found.end() + int(found.group(2))
        data, flag = record[found.end() : stop], found.group(3)
        items.append(Payload(data, score, Recorded(flag.decode())) if flag else Payload(data, score))
        at = stop
    return tuple(items)


def parse_id(data: bytes) -> str:
    """An id from the store. Bytes that were planted there and are no UTF-8 survive a round trip."""
    return data.decode("utf-8", "surrogateescape")


def id_bytes(job_id: str) -> bytes:
    """What the store holds for an id."""
    return job_id.encode("utf-8", "surrogateescape")


def parse_processing(job_id: bytes, record: bytes) -> Job:
    """A job from its processing record."""
    return _usual(job_id, record) or _any(job_id, record)


def _usual(job_id: bytes, record: bytes) -> Job | None:
    """What nearly all records are, read in a quarter of the time: a job that never failed, with one payload
    of which no call has a record.
    """
    parts = record.split(b" ", 6)
    if len(parts) < 7 or parts[2] != b"-1" or parts[3] != b"0":
        return None
    claim, perform_in, _, _, score, length, data = parts
    numbers = (claim, perform_in.replace(b".", b"", 1), score.replace(b".", b"", 1), length)
    if not all(map(bytes.isdigit, numbers)) or max(map(len, numbers)) > DIGITS or int(length) != len(data):
        return None
    payloads = (Payload(data, float(score)),)
    return Job(parse_id(job_id), payloads, float(perform_in), claim=int(claim), payload_count=1)


def _any(job_id: bytes, record: bytes) -> Job:
    found = _HEAD.match(record)
    perform_in = _number(found.group(4)) if found else None
    if found is None or perform_in is None:
        payloads = parse_items(record)
        return Job(parse_id(job_id), payloads, 0.0, payload_count=len(payloads))
    stop = found.end() + int(found.group(6))
    payloads = parse_items(record[stop:])
    retry_count, isolation = parse_tried(found.group(5))
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


def tried_text(retry_count: int, isolation: Isolation) -> str:
    """A retry_count with the isolation of its job as its fraction, as ``lib/isolation.lua`` reads it."""
    fraction = f".{isolation.largest:03d}{isolation.parts:03d}" if isolation.largest else ""
    return f"{retry_count}{fraction}"


def parse_tried(text: bytes) -> tuple[int, Isolation]:
    """A retry_count and an isolation; -1 and none where something else was planted."""
    if not _TRIED.fullmatch(text):
        return -1, NOT_ISOLATED
    if b"." not in text:
        return int(text), NOT_ISOLATED
    retry_count = math.floor(float(text))
    largest, parts = divmod(round((float(text) - retry_count) * 1_000_000), 1000)
    return retry_count, Isolation(largest, max(1, parts)) if largest else NOT_ISOLATED


def parse_whole(text: bytes) -> int:
    """An epoch or a counter; 0 where something else was planted, as ``acquire.lua`` has it."""
    return int(text) if re.fullmatch(rb"[1-9]\d{0,14}", text) else 0


def parse_moment(text: bytes | None) -> float | None:
    """Unix s as a script wrote them for people; None where nothing, or something else, was written."""
    found = _number(text or b"")
    return found if found is not None and math.isfinite(found) else None


def parse_time(text: bytes) -> float | None:
    """Unix s, or None for the empty text."""
    return float(text) if text else None


def parse_members(reply: Any) -> dict[str, tuple[int, int]]:
    """Lanes and counter by owner, from the hash of heartbeats, without what was planted there."""
    found = {}
    for field, counter in pairs(reply):
        owner, _, lanes = field.rpartition(b" ")
        if owner and _COUNT.fullmatch(lanes) and _COUNT.fullmatch(counter):
            found[owner.decode("utf-8", "replace")] = (int(lanes), int(counter))
    return found


def pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    """``[a, b, c, d]`` as ``[(a, b), (c, d)]``."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def parse_payloads(values: list[Any]) -> tuple[Payload, ...]:
    """From score, size and data (which may be only the beginning) of each."""
    parts = zip(values[::3], values[1::3], values[2::3], strict=True)
    return tuple(
        Payload(data, float(score), cut_from=size if len(data) < size else None)
        for score, size, data in parts
    )


def shortened(job: Job, payload_limit: int, cut: int) -> Job:
    """With so many payloads at most, and of each so many bytes."""
    return job._replace(payloads=tuple(_cut(payload, cut) for payload in job.payloads[:payload_limit]))


def _cut(payload: Payload, cut: int) -> Payload:
    size = len(payload.data)
    return payload if size <= cut else payload._replace(data=payload.data[:cut], cut_from=size)
