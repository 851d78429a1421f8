"""A stack of requests that coroutines inherit from the lane whose batch they run."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class ContextStack:
    """As Celery's ``LocalStack``, which holds what one thread runs, in a context variable.

    Many coroutines share the thread of an event loop; each has a context of its own, as each thread has.
    """

    def __init__(self) -> None:
        self._items: ContextVar[tuple[Any, ...]] = ContextVar("lowkiq_requests", default=())

    def push(self, item: Any) -> None:
        """Put an item on the stack of this context."""
        self._items.set((*self._items.get(), item))

    def pop(self) -> Any:
        """Take the last item from the stack of this context; None when it is empty."""
        items = self._items.get()
        if not items:
            return None
        self._items.set(items[:-1])
        return items[-1]

    @property
    def top(self) -> Any:
        items = self._items.get()
        return items[-1] if items else None

    @property
    def stack(self) -> list[Any]:
        return list(self._items.get())

    def __len__(self) -> int:
        return len(self._items.get())
