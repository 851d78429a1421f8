"""The audit log in Redis: the last changes that people made, of all processes."""

from __future__ import annotations

import re
from typing import Any

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.views import Page
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import AUDIT_KEY
from celery_lowkiq.store.scripts.records import pairs

#: Maximum number of entries, and of bytes of one.
KEPT, MAX_BYTES = 5000, 4096
_ENTRY = re.compile(r"\d{1,18}-\d{1,18}")


def write_entry(client: Client, text: bytes) -> None:
    """Add an entry, and remove the oldest ones. Raises StoreError; ValueError for one that is too long."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"{len(text)} bytes are invalid: expected at most {MAX_BYTES}")
    client.commands([("XADD", AUDIT_KEY, "MAXLEN", "~", KEPT, "*", "text", text)])


def read_entries(client: Client, limit: int, after: str | None) -> Page[tuple[float, bytes]]:
    """Return a page of entries with their Unix time (s), the latest first. Raises InvalidCall, StoreError."""
    if after is not None and not _ENTRY.fullmatch(after):
        raise InvalidCall(f"after={after[:50]!r} is invalid: expected the `next` of a page")
    start = "+" if after is None else f"({after}"
    (reply,) = client.commands([("XREVRANGE", AUDIT_KEY, start, "-", "COUNT", limit + 1)])
    found = [_entry(*entry) for entry in reply]
    page = found[:limit]
    following = page[-1][0] if len(found) > limit else None
    return Page(tuple((int(entry.partition("-")[0]) / 1000, text) for entry, text in page), following)


def _entry(entry: Any, fields: Any) -> tuple[str, bytes]:
    # redis-py decodes the reply for a command that it knows.
    known = fields if isinstance(fields, dict) else dict(pairs(fields))
    return entry.decode("ascii"), known.get(b"text", b"")
