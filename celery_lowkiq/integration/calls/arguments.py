"""The arguments of a call: an id and a payload, or with ``key=`` a payload alone.

A signature keeps them by name, so that what a chain or a chord puts in front becomes the payload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery.utils.saferepr import saferepr

#: Maximum length of wrong arguments in an error.
SHOWN = 200

Header = Callable[..., tuple[Any, Any]]


def by_id(id: Any, payload: Any = "") -> tuple[Any, Any]:  # noqa: A002 - what callers write
    """Id and payload."""
    return id, payload


def by_key(payload: Any) -> tuple[Any, Any]:
    """No id yet, and the payload."""
    return None, payload


def header_for(name: str, keyed: bool) -> Header:
    """Celery's argument check of a task, which returns id and payload, or raises TypeError.

    It is a partial: Celery runs an errback whose check takes two arguments here and now, outside of any
    queue, unless it is one.
    """
    plain: Header = _named(by_key if keyed else by_id, name)

    def header(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if args and "payload" in kwargs and (keyed or "id" in kwargs):
            raise TypeError(
                f"{name}() has a payload, and gets another one from the task before it: write "
                f"{name}.si(...) to keep its own, or leave the payload out"
            )
        if args and "id" in kwargs and not keyed:
            return plain(kwargs["id"], *args, **{k: v for k, v in kwargs.items() if k != "id"})
        return plain(*args, **kwargs)

    return partial(_named(header, name))


def check_arguments(args: Any, kwargs: Any) -> None:
    """Raises TypeError unless they are what Celery takes: a list or tuple, a mapping, or None.

    Python itself takes a text as a list of letters.
    """
    if args is not None and not isinstance(args, (list, tuple)):
        raise TypeError(f"args={saferepr(args, SHOWN)} is invalid: expected a list or a tuple")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(k, str) for k in kwargs)):
        raise TypeError(f"kwargs={saferepr(kwargs, SHOWN)} is invalid: expected a mapping with names as keys")


def as_keywords(args: Sequence[Any], kwargs: Mapping[str, Any], keyed: bool, name: str) -> dict[str, Any]:
    """Arguments of a signature by their names. Raises TypeError for too many."""
    names = ("payload",) if keyed else ("id", "payload")
    if len(args) > len(names):
        raise TypeError(f"{name}() takes {' and '.join(names)}, got {len(args)} positional arguments")
    twice = [given for given in names[: len(args)] if given in kwargs]
    if twice:
        raise TypeError(f"{name}() got multiple values for argument {twice[0]!r}")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _named(function: Any, name: str) -> Any:
    named = type(function)(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    named.__qualname__ = name
    return named
