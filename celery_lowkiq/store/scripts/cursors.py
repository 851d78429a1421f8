"""Cursors of listings: opaque text for callers, decoded to positions."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Collection

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.layout import MAX_SHARDS

from .records import number_text

#: Largest cursor of Redis, a number of 64 bits.
LAST_SCAN = 2**64 - 1
#: Before the shards that the pages until a cursor lack.
MISSING = "~"
_RUN_ID = re.compile("[0-9a-zA-Z]{1,64}")


def dump_position(score: float, job_id: bytes) -> str:
    """Encode the cursor after a member of a sorted index."""
    return base64.urlsafe_b64encode(number_text(score).encode() + b" " + job_id).decode()


def load_position(cursor: str) -> tuple[float, bytes]:
    """Decode the cursor after a member of a sorted index. Raises InvalidCall."""
    try:
        text, _, job_id = base64.urlsafe_b64decode(_place(cursor).encode()).partition(b" ")
        score = float(text)
        if math.isnan(score):
            raise ValueError(text)
        return score, job_id
    except (ValueError, binascii.Error):
        raise _not_a_cursor(cursor) from None


def dump_scan(place: int, cursor: int, server: str) -> str:
    """Encode the cursor of a scan over the shards of a queue, with the server that knows it."""
    return f"{place}.{cursor}.{server}" if cursor else f"{place}.0"


def load_scan(text: str) -> tuple[int, tuple[int, str]]:
    """Decode the cursor of a scan. Raises InvalidCall."""
    place, _, rest = _place(text).partition(".")
    cursor, _, server = rest.partition(".")
    if not (_is_number(place, 15) and _is_number(cursor, 20) and int(cursor) <= LAST_SCAN):
        raise _not_a_cursor(text)
    if server and not _RUN_ID.fullmatch(server):
        raise _not_a_cursor(text)
    return int(place), (int(cursor), server)


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
        raise _not_a_cursor(cursor) from None
    if bits.bit_length() > MAX_SHARDS:
        raise _not_a_cursor(cursor)
    return frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)


def _place(cursor: str) -> str:
    return cursor.partition(MISSING)[0]


def load_place(text: str) -> int:
    """Decode the cursor of a list in order of arrival. Raises InvalidCall."""
    if not _is_number(text, 15):
        raise _not_a_cursor(text)
    return int(text)


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= digits


def _not_a_cursor(text: str) -> InvalidCall:
    return InvalidCall(
        f"after={text!r} is invalid: expected a cursor of this listing. Pass `next` of the previous page"
    )
