"""The stream of events: every change of a file, in the order in which it happened."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

#: The stream that comes with the example; ``generate.py`` made it.
SHIPPED = Path(__file__).with_name("events.ndjson.gz")
STATUSES = ("A", "M", "D")
GZIP_MAGIC = b"\x1f\x8b"
MAX_ID_BYTES = 256


class StreamError(Exception):
    """The stream cannot be read; the message says where and why."""


@dataclass(frozen=True)
class Event:
    """One change of one file. ``at`` is a Unix time (s), ``blob`` is None when the file was deleted."""

    path: str
    version: int
    at: int
    status: str
    blob: str | None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ValueError(f"path is {self.path!r}, it must be a text that is not empty")
        if not isinstance(self.version, int) or isinstance(self.version, bool):
            raise ValueError(f"version is {self.version!r}, it must be a whole number")
        if self.status not in STATUSES:
            raise ValueError(f"status is {self.status!r}, it must be one of {', '.join(STATUSES)}")
        if (self.blob is None) != (self.status == "D"):
            raise ValueError(f"blob is {self.blob!r}, it must be null for a deletion and only then")

    @property
    def payload(self) -> dict[str, Any]:
        """The payload of the message."""
        return {"version": self.version, "status": self.status, "blob": self.blob}


def read_events(file: Path) -> list[Event]:
    """Read a stream of one JSON object per line, gzipped or not.

    Raises ``StreamError`` when a line is not an event, or when a path's versions do not grow.
    """
    try:
        with _open(file) as lines:
            events = [_parse(line, f"{file}:{number}") for number, line in enumerate(lines, 1)]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise StreamError(f"{file} cannot be read: {error}") from error
    if not events:
        raise StreamError(f"{file} holds no event")
    _check_order(events)
    return events


def _open(file: Path) -> TextIO:
    with file.open("rb") as raw:
        zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return gzip.open(file, "rt", encoding="utf-8") if zipped else file.open(encoding="utf-8")


def _parse(line: str, where: str) -> Event:
    try:
        fields = json.loads(line)
        event = Event(*(fields[name] for name in ("path", "version", "at", "status", "blob")))
        return replace(event, path=as_id(event.path))
    except KeyError as error:
        raise StreamError(f"{where}: {error} is missing") from error
    except (ValueError, TypeError) as error:
        raise StreamError(f"{where}: not an event: {error}") from error


def as_id(path: str) -> str:
    """The path itself, or a digest of it when an id may not look like that.

    An id has at most 256 bytes and no control characters; git takes more than that.
    """
    encoded = path.encode(errors="surrogateescape")
    if path.isprintable() and len(encoded) <= MAX_ID_BYTES:
        return path
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def _check_order(events: Iterable[Event]) -> None:
    newest: dict[str, int] = {}
    for event in events:
        before = newest.setdefault(event.path, event.version)
        if event.version < before:
            raise StreamError(
                f"version {event.version} of {event.path} comes after version {before}; "
                "a stream holds the changes of a path in the order in which they happened"
            )
        newest[event.path] = event.version


def with_copies(events: Iterable[Event], share: float, seed: int) -> Iterator[Event]:
    """Deliver about ``share`` (0 to 1) of the events twice, each copy right behind its original."""
    chance = random.Random(seed)
    for event in events:
        yield event
        if chance.random() < share:
            yield event


def final_tree(events: Iterable[Event]) -> dict[str, str]:
    """The blob of each path that exists after the last event."""
    last = {event.path: event.blob for event in events}
    return {path: blob for path, blob in last.items() if blob is not None}


def wrong_files(tree: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Paths that are wrong: outdated, missing, or present although deleted."""
    return sorted(path for path in {*tree, *expected} if tree.get(path) != expected.get(path))
