"""The rest of a checked call: a push alone, or a function that does more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from celery_lowkiq.rules.models import NewJob

from .validation import Entry

T = TypeVar("T")


@dataclass
class PushRequest(Generic[T]):
    """A push. Without client middlewares it runs no code of the user's, and nothing else in it blocks."""

    entries: tuple[Entry, ...]
    jobs: list[NewJob]
    #: Before each retry, in s.
    intervals: Iterable[float]
    #: Makes what the caller gets.
    result: Callable[[], T]


#: The function makes Celery's message with its signals, updates a tracker, or runs the task eagerly.
CallRequest: TypeAlias = PushRequest[T] | Callable[[], T]
