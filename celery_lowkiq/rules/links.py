"""The tasks that the links of a call name: its callbacks, errbacks, chain and chord."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

#: Fields of a call that hold signatures.
FIELDS = ("callbacks", "errbacks", "chain", "chord")
#: Options of a signature that hold signatures.
LINKS = (*FIELDS, "link", "link_error")
#: Types of signatures that Celery takes apart where it calls them, and their arguments that hold signatures.
CANVAS = frozenset({"chain", "group", "chord"})
PARTS = ("tasks", "header", "body")
#: Other types, and their tasks. These call whatever task their arguments name, also by a text.
MAPS = {"xmap": "celery.map", "xstarmap": "celery.starmap", "chunks": "celery.chunks"}
#: A task of Celery's that calls no other; ``Task.replace`` links it.
HARMLESS = "celery.accumulate"


def signatures(linked: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all signatures in the links of a call, at any depth.

    Each mapping with the key ``task`` or ``subtask_type`` counts as a signature.
    """
    left = [linked]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            if _is_signature(value):
                yield value
            left += value.values()
        elif _is_many(value):
            left += value


def tasks_of(linked: Any) -> Iterator[str]:
    """Yield the names of the tasks that the signatures in the links of a call name, at any depth."""
    for signature in signatures(linked):
        kind, task = str(signature.get("subtask_type") or ""), signature.get("task")
        if kind and kind not in CANVAS:
            yield MAPS.get(kind, kind)
        if isinstance(task, str) and not (kind in CANVAS and task == f"celery.{kind}"):
            yield task


def refused_task(linked: Mapping[str, Any], allowed: Sequence[str]) -> str | None:
    """Return a task of the links that no name or pattern allows, else None.

    A text in place of a signature counts as refused, because Celery would call the task of this name.
    """
    for name in tasks_of(linked):
        if name != HARMLESS and not any(fnmatchcase(name, pattern) for pattern in allowed):
            return name
    return next((str(other) for place in _places(linked) for other in _others(place)), None)


def links_fault(linked: Mapping[str, Any]) -> str | None:
    """Return why Celery cannot send the links of a call; None when it can.

    In errbacks, Celery takes a text for a signature.
    """
    for name in FIELDS:
        value = linked.get(name)
        kinds = (Mapping, str) if name == "errbacks" else Mapping
        each: Any = [value] if name == "chord" else value
        if value and not (_is_many(each) and all(isinstance(one, kinds) for one in each)):
            return f"{name}={value!r:.200} is invalid: expected signatures"
    return None


def _is_signature(value: Mapping[str, Any]) -> bool:
    return "task" in value or bool(value.get("subtask_type"))


def _is_many(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset))


def _places(linked: Mapping[str, Any]) -> Iterator[Any]:
    """Values that Celery turns into signatures, wherever they stand in the links of a call."""
    yield from map(linked.get, FIELDS)
    for signature in signatures(linked):
        holders: list[tuple[Any, Sequence[str]]] = [(signature, LINKS), (signature.get("options"), LINKS)]
        if signature.get("subtask_type"):
            holders.append((signature.get("kwargs"), PARTS))
        for holder, names in holders:
            if isinstance(holder, Mapping):
                yield from map(holder.get, names)


def _others(place: Any) -> Iterator[Any]:
    """Values in place of a signature."""
    left = [place]
    while left:
        value = left.pop()
        if _is_many(value):
            left += value
        elif not (value is None or (isinstance(value, Mapping) and _is_signature(value))):
            yield value
