"""Scans of a key, whose cursors only the server that gave them understands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.records import pairs, parse_id
from celery_lowkiq.store.scripts.script import ScriptCall, load


class Position(NamedTuple):
    """How far a scan has come; 0 is the beginning, and the end. ``server`` gave the cursor."""

    cursor: int = 0
    server: str = ""


BEGINNING = Position()


def scan_call(key: str, position: Position, limit: int, command: str = "ZSCAN") -> ScriptCall:
    """Return the call that reads about ``limit`` entries. When the key has moved to another server, which may
    be a replica of the former one or that one restarted, it reads from the beginning.
    """
    cursor, server = position
    return load("scan").call({"index": key}, command=command, cursor=cursor, limit=limit, server=server)


def scanned(reply: Sequence[Any]) -> tuple[Position, list[tuple[bytes, bytes]]]:
    """Read the reply of :func:`scan_call`: where to go on, and the entries with their scores or values."""
    server, cursor, entries = reply
    return Position(int(cursor), parse_id(server)), list(pairs(entries))


def scan(client: Client, key: str, step: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield (member, score) pairs of a sorted set, at most ``step`` at a time.

    The scan finds all members that are there throughout; those that it has read come again when the key moves
    to another server. Raises StoreError.
    """
    position = BEGINNING
    while True:
        position, found = scanned(client.call(scan_call(key, position, step)))
        yield from (found[start : start + step] for start in range(0, len(found), step))
        if not position.cursor:
            return
