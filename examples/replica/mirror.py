"""The mirror: a table of files in SQLite, which applies changes in the order of their arrival.

It neither locks nor compares versions. What it counts is for the report and changes nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLES = """
    CREATE TABLE files (path TEXT PRIMARY KEY, version INTEGER, blob TEXT);
    CREATE TABLE writes (number INTEGER PRIMARY KEY, path TEXT, version INTEGER, stale INTEGER);
    CREATE INDEX writes_of_path ON writes (path, number);
"""
PUT = "INSERT OR REPLACE INTO files VALUES (:path, :version, :blob)"
REMOVE = "DELETE FROM files WHERE path = :path"
RECORD = """
    INSERT INTO writes (path, version, stale) SELECT :path, :version, :version < coalesce(
        (SELECT version FROM writes WHERE path = :path ORDER BY number DESC LIMIT 1), :version)
"""
COUNT = "SELECT count(*), coalesce(sum(stale), 0) FROM writes"
BUSY_SECONDS = 30


@dataclass(frozen=True)
class Writes:
    """Writes to the mirror, and writes of an older version over a newer one."""

    total: int
    stale: int


class Mirror:
    """The mirror in one SQLite file. Threads may share it; each has its own connection."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._own = threading.local()

    def create(self) -> None:
        """Make the empty tables."""
        connection = self._connection()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(TABLES)

    def apply(self, path: str, change: Mapping[str, Any]) -> None:
        """Write one version of a file, or remove the file when the version is a deletion."""
        row = {"path": path, "version": change["version"], "blob": change["blob"]}
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            connection.execute(RECORD, row)
            connection.execute(REMOVE if change["status"] == "D" else PUT, row)

    def writes(self) -> Writes:
        """The writes so far."""
        return Writes(*self._connection().execute(COUNT).fetchone())

    def tree(self) -> dict[str, str]:
        """The blob of each file."""
        return dict(self._connection().execute("SELECT path, blob FROM files"))

    def close(self) -> None:
        """Close this thread's connection."""
        self._connection().close()
        del self._own.connection

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._own, "connection"):
            # Transactions are begun by hand: sqlite3 by itself begins them too late to see a stale write.
            self._own.connection = sqlite3.connect(self._file, timeout=BUSY_SECONDS, isolation_level=None)
            self._own.connection.execute("PRAGMA synchronous = OFF")
        return self._own.connection  # type: ignore[no-any-return]
