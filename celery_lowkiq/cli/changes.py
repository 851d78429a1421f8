"""Whether Python files have changed: by ``watchfiles`` where it is installed, else by looking at them."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Seconds between two looks at the files.
LOOK = 0.5
#: Directories that hold no code of the app.
PASSED = {"__pycache__", "node_modules"}


@dataclass(frozen=True)
class Code:
    """Where the code of an app lies: a package's directories, with all below, or the one of a module."""

    directories: tuple[Path, ...]
    recursive: bool

    def files(self) -> Iterator[Path]:
        """All Python files."""
        for directory in self.directories:
            for place, folders, names in os.walk(directory):
                folders[:] = [name for name in folders if self.recursive and _is_code(name)]
                yield from (Path(place, name) for name in names if name.endswith(".py"))


def code_of(app: str) -> Code:
    """Of what ``-A`` names, and Celery has imported: ``proj``, ``proj.app:app``."""
    root = app.partition(":")[0].partition(".")[0]
    module = sys.modules.get(root) or importlib.import_module(root)
    if hasattr(module, "__path__"):
        return Code(tuple(Path(path) for path in module.__path__), recursive=True)
    return Code((Path(str(module.__file__)).parent,), recursive=False)


def changes(code: Code, stop: threading.Event) -> Iterator[None]:
    """One for each time that something has changed, until ``stop`` is set."""
    try:
        import watchfiles
    except ImportError:
        return polled(code, stop)
    found = watchfiles.watch(
        *code.directories, watch_filter=watchfiles.PythonFilter(), stop_event=stop, recursive=code.recursive
    )
    return (None for _ in found)


def polled(code: Code, stop: threading.Event, look: float = LOOK) -> Iterator[None]:
    """The same, by looking each ``look`` s."""
    before = _state(code)
    while not stop.wait(look):
        now = _state(code)
        if now != before:
            before = now
            yield


def _state(code: Code) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in code.files():
        try:
            about = path.stat()
        except OSError:  # gone since it was listed
            continue
        found[path] = (about.st_mtime_ns, about.st_size)
    return found


def _is_code(folder: str) -> bool:
    return folder not in PASSED and not folder.startswith(".")
