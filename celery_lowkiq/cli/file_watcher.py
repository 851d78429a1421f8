"""Watches Python files for changes: with ``watchfiles`` if it is installed, else by polling."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Seconds between two polls.
POLL_INTERVAL = 0.5
#: Directories without code of the app.
SKIPPED = {"__pycache__", "node_modules"}


@dataclass(frozen=True)
class SourceTree:
    """The directories of an app's code: those of a package, with subdirectories, or that of a module."""

    directories: tuple[Path, ...]
    recursive: bool

    def files(self) -> Iterator[Path]:
        """All Python files."""
        for directory in self.directories:
            for place, folders, names in os.walk(directory):
                folders[:] = [name for name in folders if self.recursive and _is_code(name)]
                yield from (Path(place, name) for name in names if name.endswith(".py"))


def source_tree_of(app: str) -> SourceTree:
    """Return the source tree of an app as ``-A`` names it: ``proj``, ``proj.app:app``."""
    root = app.partition(":")[0].partition(".")[0]
    module = sys.modules.get(root) or importlib.import_module(root)
    if hasattr(module, "__path__"):
        return SourceTree(tuple(Path(path) for path in module.__path__), recursive=True)
    return SourceTree((Path(str(module.__file__)).parent,), recursive=False)


def watch_files(tree: SourceTree, stop: threading.Event) -> Iterator[frozenset[Path]]:
    """Yield the changed files after each change, until ``stop`` is set."""
    try:
        import watchfiles
    except ImportError:
        return poll_files(tree, stop)
    found = watchfiles.watch(
        *tree.directories, watch_filter=watchfiles.PythonFilter(), stop_event=stop, recursive=tree.recursive
    )
    return (frozenset(Path(path) for _, path in changes) for changes in found)


def poll_files(
    tree: SourceTree, stop: threading.Event, interval: float = POLL_INTERVAL
) -> Iterator[frozenset[Path]]:
    """Yield the changed files after each change; files are read every ``interval`` s."""
    before = _state(tree)
    while not stop.wait(interval):
        now = _state(tree)
        if now != before:
            changed = {path for path, _ in before.items() ^ now.items()}
            before = now
            yield frozenset(changed)


def _state(tree: SourceTree) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in tree.files():
        try:
            about = path.stat()
        except OSError:  # deleted since it was listed
            continue
        found[path] = (about.st_mtime_ns, about.st_size)
    return found


def _is_code(folder: str) -> bool:
    return folder not in SKIPPED and not folder.startswith(".")
