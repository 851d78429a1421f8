"""What is left to do for a checked call: either a push alone, or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from celery_lowkiq.rules.models import NewJob

from .validation import Entry

T = TypeVar("T")


@dataclass
class PushRequest(Generic[T]):
    """A push. Where no client middleware sees it, no code of the user's runs, and nothing else blocks."""

    entries: tuple[Entry, ...]
    jobs: list[NewJob]
    #: Before each retry, in s.
    intervals: Iterable[float]
    #: Makes what the caller gets.
    result: Callable[[], T]


#: Or a function that does it all: Celery's message and its signals, a tracker, an eager run.
CallRequest: TypeAlias = PushRequest[T] | Callable[[], T]
