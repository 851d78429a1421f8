"""The ledger as files: one for each process, a JSON object a line, on a clock that all of a host share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Appends lines to a process's own file. Each is written whole, so that a kill leaves no half of one."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        path = Path(directory) / f"{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **fields: Any) -> None:
        """One line; ``at`` is ``time.monotonic()`` unless given."""
        line = {"event": event, "pid": os.getpid(), "at": time.monotonic(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)


class Reader:
    """Reads the ledger as it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Every whole line that came since; those of one process in order."""
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if line.endswith(b"\n"):
                        self._read[path] = self._read.get(path, 0) + len(line)
                        yield json.loads(line)
