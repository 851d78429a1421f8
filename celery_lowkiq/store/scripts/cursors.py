"""Cursors of listings: opaque text for callers.

A cursor is a number and the bytes behind it: the score and the member of a sorted index, or the place of a
scan or a list. Behind ``~`` it has the shards that the pages until there lack.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Collection

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.layout import MAX_SHARDS

from .records import number_text

MISSING = "~"
#: Largest place.
LAST_PLACE = 10**15


def dump_cursor(number: float, rest: bytes = b"") -> str:
    """Encode a cursor."""
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
