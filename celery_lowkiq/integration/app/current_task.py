"""The task that runs in this thread or greenlet."""

from __future__ import annotations

from typing import Any

from celery import _state
from celery._state import get_current_worker_task
from celery.utils.threads import _LocalStack

_task_stack: Any = vars(_state)["_task_stack"]

#: What the stack of running tasks holds, by thread; None with ``USE_FAST_LOCALS``.
_stacks: Any = vars(_task_stack)["_local"].__storage__ if type(_task_stack) is _LocalStack else None


def current_worker_task() -> Any:
    """Return Celery's ``get_current_worker_task()``, in a tenth of its time where nothing runs."""
    if _stacks is not None and _task_stack.__ident_func__() not in _stacks:
        return None
    return get_current_worker_task()
