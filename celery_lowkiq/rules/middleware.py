"""Middlewares: functions that wrap a run or a push."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: ``def m(task, batch, call)``: returns the result of ``call()``, or raises.
Middleware = Callable[[Any, Any, Callable[[], Any]], Any]


def compose(middlewares: Sequence[Middleware], task: Any, batch: Any, call: Callable[[], Any]) -> Any:
    """Run ``call`` inside the middlewares, the first one outermost."""
    if not middlewares:
        return call()
    first, *rest = middlewares
    return first(task, batch, lambda: compose(rest, task, batch, call))
