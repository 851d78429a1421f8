"""Where a listing goes on: opaque text for the caller, a position for us."""

from __future__ import annotations

import base64
import binascii
import math

from celery_lowkiq.rules.errors import InvalidCall

from .records import number_text

#: Cursors of Redis are numbers of 64 bits.
LAST_SCAN = 2**64 - 1


def dump_position(score: float, job_id: bytes) -> str:
    """Cursor behind a member of a sorted index."""
    return base64.urlsafe_b64encode(number_text(score).encode() + b" " + job_id).decode()


def load_position(cursor: str) -> tuple[float, bytes]:
    """Raises InvalidCall when the text is not a cursor of this kind."""
    try:
        score, _, job_id = base64.urlsafe_b64decode(cursor.encode()).partition(b" ")
        found = float(score)
        if math.isnan(found):
            raise ValueError(score)
        return found, job_id
    except (ValueError, binascii.Error):
        raise _not_a_cursor(cursor) from None


def dump_scan(shard: int, cursor: int) -> str:
    """Cursor of a scan through the shards of a queue."""
    return f"{shard}.{cursor}"


def load_scan(text: str) -> tuple[int, int]:
    """Raises InvalidCall when the text is not a cursor of this kind."""
    shard, _, cursor = text.partition(".")
    if not (_is_number(shard, 15) and _is_number(cursor, 20) and int(cursor) <= LAST_SCAN):
        raise _not_a_cursor(text)
    return int(shard), int(cursor)


def load_place(text: str) -> int:
    """A place of arrival. Raises InvalidCall when the text is not a cursor of this kind."""
    if not _is_number(text, 15):
        raise _not_a_cursor(text)
    return int(text)


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= digits


def _not_a_cursor(text: str) -> InvalidCall:
    return InvalidCall(f"after={text!r} is no cursor of this listing: pass the `next` of the page before")
