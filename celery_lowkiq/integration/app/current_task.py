"""The task that runs in this thread or greenlet."""

from __future__ import annotations

from typing import Any

from celery._state import _task_stack, get_current_worker_task  # type: ignore[attr-defined]
from celery.utils.threads import _LocalStack


def storage_of(stack: Any) -> dict[Any, Any] | None:
    """What one of Celery's stacks holds, by thread or greenlet; None with ``USE_FAST_LOCALS``."""
    return vars(stack)["_local"].__storage__ if type(stack) is _LocalStack else None


_running = storage_of(_task_stack)


def current_worker_task() -> Any:
    """Return Celery's ``get_current_worker_task()``, in a tenth of its time where nothing runs."""
    if _running is not None and _task_stack.__ident_func__() not in _running:
        return None
    return get_current_worker_task()


def running(task: Any) -> Any:
    """What :func:`replace` takes to make this task the running one."""
    return task if _running is None else {"stack": [task]}


def replace(own: Any) -> Any:
    """Make a task the running one of this thread. Return what :func:`restore` takes.

    As a push, in a tenth of its time: each step of a coroutine needs it.
    """
    if _running is None:
        return _task_stack.push(own)
    thread = _task_stack.__ident_func__()
    before = _running.get(thread)
    _running[thread] = own
    return before


def restore(before: Any) -> None:
    """Undo :func:`replace`."""
    if _running is None:
        _task_stack.pop()
    elif before is None:
        _running.pop(_task_stack.__ident_func__(), None)
    else:
        _running[_task_stack.__ident_func__()] = before
