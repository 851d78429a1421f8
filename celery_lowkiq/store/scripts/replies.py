"""Replies that cannot be read: data in Redis is foreign, or something else answers in its place."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from celery_lowkiq.rules.errors import LowkiqError, StoreError

T = TypeVar("T")

#: What readers of replies raise for unexpected ones, redis-py's own parser among them (arrays in arrays
#: without end); some errors of the package are ValueErrors, too.
UNREADABLE = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    MemoryError,
)


class UnexpectedReply(StoreError):
    """Redis sent a reply that cannot be read. Writes may or may not have happened."""

    def __init__(self, error: BaseException) -> None:
        (frame,) = traceback.extract_tb(error.__traceback__, limit=-1)
        super().__init__(
            f"Redis sent a reply that cannot be read: {error!r:.200} ({Path(frame.filename).name}, line "
            f"{frame.lineno}). Its data is foreign, or something else answers in its place"
        )


def reads_replies(target: T) -> T:
    """Have a function, or the public methods of a class, raise UnexpectedReply for what they fail to read."""
    if not inspect.isclass(target):
        return _reading(target)  # type: ignore[no-any-return]
    for name, method in list(vars(target).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(target, name, _reading(method))
    return target


def read_or_error(read: Callable[[], T]) -> T | UnexpectedReply:
    """Return what ``read`` returns, or an UnexpectedReply."""
    try:
        return read()
    except UNREADABLE as error:
        if _is_ours(error):
            raise
        return UnexpectedReply(error)


def _is_ours(error: BaseException) -> bool:
    """Whether it is about the call: one of the package, or of arguments that do not fit the function."""
    frame = error.__traceback__
    return isinstance(error, LowkiqError) or frame is None or frame.tb_next is None


def _reading(function: Any) -> Any:
    @wraps(function)
    def read(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UNREADABLE as error:
            if _is_ours(error):
                raise
            raise UnexpectedReply(error) from error

    @wraps(function)
    def read_each(*args: Any, **kwargs: Any) -> Any:
        try:
            yield from function(*args, **kwargs)
        except UNREADABLE as error:
            if _is_ours(error):
                raise
            raise UnexpectedReply(error) from error

    return read_each if inspect.isgeneratorfunction(function) else read
