"""Lets a call that is made in another thread see the running task that makes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from celery._state import (  # type: ignore[attr-defined]
    get_current_worker_task,
    pop_current_task,
    push_current_task,
)

T = TypeVar("T")


def of_caller(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function for another thread, in which the current task is that of this one."""
    task: Any = get_current_worker_task()
    return function if task is None else partial(_within, task, task.request, function)


def _within(task: Any, request: Any, function: Callable[[], T]) -> T:
    push_current_task(task)
    task.request_stack.push(request)
    try:
        return function()
    finally:
        task.request_stack.pop()
        pop_current_task()
