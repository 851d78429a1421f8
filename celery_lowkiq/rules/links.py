"""The tasks that the links of a call name: its callbacks, errbacks, chain and chord."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

#: Fields of a call that hold signatures; headers of these names would count as such, too.
FIELDS = ("callbacks", "errbacks", "chain", "chord")
#: Celery's tasks that only run the signatures in their arguments.
CANVAS = frozenset(
    f"celery.{name}" for name in ("accumulate", "chain", "chord", "chunks", "group", "map", "starmap")
)


def tasks_of(linked: Any) -> Iterator[str]:
    """Yield the names of the tasks of all signatures in a value, at any depth.

    Each mapping with the key ``task`` counts as a signature.
    """
    left = [linked]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            if "task" in value and isinstance(value["task"], str):
                yield value["task"]
            left += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            left += value


def refused_task(linked: Any, allowed: Sequence[str]) -> str | None:
    """Return a task of the links that no name or pattern allows; None when there is none."""
    for name in tasks_of(linked):
        if name not in CANVAS and not any(fnmatchcase(name, pattern) for pattern in allowed):
            return name
    return None
