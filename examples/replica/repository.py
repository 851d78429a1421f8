"""A git repository as a source of events."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .stream import Event, StreamError, as_id

# What a user's configuration may have switched on and the parser does not know.
LOG = (
    *("log", "--first-parent", "-m", "--raw", "-z", "--reverse", "--format=commit %ct", "--no-abbrev"),
    *(
        "--root",
        "--no-renames",
        "--no-relative",
        "--no-color",
        "--no-show-signature",
        "--ignore-submodules=none",
    ),
)
# Set by git for its hooks; they would name another repository than the one asked for.
ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def read_history(repository: Path) -> list[Event]:
    """Every change of a file along the first parents of HEAD; its version is the number of the commit.

    Raises ``StreamError`` when git cannot read the repository.
    """
    events = list(_parse_log(_git(repository, *LOG)))
    if not events:
        raise StreamError(f"the history of {repository} changes no file")
    return events


def read_tree(repository: Path) -> dict[str, str]:
    """The blob of each path in HEAD, as ``git ls-tree`` has it."""
    entries = _git(repository, "ls-tree", "-r", "-z", "--full-tree", "HEAD").split("\0")
    described = (entry.partition("\t") for entry in entries if entry)
    return {as_id(path): description.split()[2] for description, _, path in described}


def _parse_log(log: str) -> Iterator[Event]:
    version = at = 0
    tokens = iter(log.split("\0"))
    for token in tokens:
        head = token.lstrip("\n")
        if head.startswith("commit "):
            version, at = version + 1, int(head.split()[1])
        elif head:
            blob, status = head.split()[3:5]
            kind = "M" if status == "T" else status  # a type change, such as a file that became a link
            yield Event(as_id(next(tokens)), version, at, kind, None if kind == "D" else blob)


def _git(repository: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    command = ["git", "-C", str(repository), *arguments]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
    except OSError as error:
        raise StreamError(f"git cannot be started: {error}") from error
    if done.returncode != 0:
        raise StreamError(f"{repository} cannot be read: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="surrogateescape")
