"""The current app and task, and the -A argument that names an app."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery, _state
from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.local import Proxy
from celery.utils.threads import _LocalStack

# The app as a command names it, for commands that advice shows.

#: How texts that know no app begin a command.
COMMAND = "celery -A proj "


def naming(text: str, app: Celery) -> str:
    """Return the text with commands that name the app: as this process's own command, else by its name."""
    name = _given(sys.argv) or app.main
    return text.replace(COMMAND, f"celery -A {name} ") if name else text


def _given(argv: Sequence[str]) -> str:
    """Name of the app by -A, or by a variable of the environment, in a command line of Celery."""
    if "celery" not in argv[0]:
        return ""
    for place, word in enumerate(argv[1:], 1):
        if word in ("-A", "--app"):
            return argv[place + 1] if place + 1 < len(argv) else ""
        if word.startswith("--app="):
            return word.removeprefix("--app=")
        if word.startswith("-A"):
            return word.removeprefix("-A")
    return os.environ.get("CELERY_APP") or os.environ.get("APP") or ""


# Resolve a shared task's app: the thread's current app, else the only app, else the app that bound the task.
#
# Celery's current app is thread-local. In a thread other than the one that created the app, without
# ``app.set_default()``, Celery creates a fallback app without the user's settings.

#: ``celery._state`` has no types.
_celery: Any = _state

NO_APP = (
    "this thread has no current Celery app: call app.set_default() where the app is created, or pass the app "
    "to @ordered_task(app=app)"
)


def is_fallback_app(app: Celery) -> bool:
    """Test for Celery's fallback for a thread without an app."""
    explicit: Any = app
    return app is _celery.default_app and app.main == "default" and not explicit.set_as_current


def current_app_task(function: Callable[..., Any], name: str | None) -> Any:
    """Return a proxy, as ``shared_task`` does, of the function's task in this thread's app."""

    def find() -> Any:
        app: Celery = _state.get_current_app()
        if is_fallback_app(app):
            app = _binder(function, name) or app
        return app.tasks[_name_in(app, function, name)]

    return Proxy(find)


def _binder(function: Callable[..., Any], name: str | None) -> Celery | None:
    """Return the only app, or the only one that bound the function, else None."""
    apps = [app for app in set(_celery._apps) if not is_fallback_app(app)]
    binders = apps if len(apps) == 1 else [app for app in apps if _has_bound(app, function, name)]
    return binders[0] if len(binders) == 1 else None


def _has_bound(app: Celery, function: Callable[..., Any], name: str | None) -> bool:
    bound: Any = app
    if not bound.finalized:
        return False
    task = bound._tasks.get(_name_in(app, function, name))
    return task is not None and getattr(task.__wrapped__, "__func__", task.__wrapped__) is function


def _name_in(app: Celery, function: Callable[..., Any], name: str | None) -> str:
    return name or str(app.gen_task_name(function.__name__, function.__module__))


# The task that runs in this thread or greenlet.


def storage_of(stack: Any) -> dict[Any, Any] | None:
    """Content of a stack of Celery's, by thread or greenlet; None with ``USE_FAST_LOCALS``."""
    return vars(stack)["_local"].__storage__ if type(stack) is _LocalStack else None


class StackTop:
    """The top of a stack of Celery's in this thread or greenlet.

    To replace it takes a tenth of the time of a push: each run and each step of a coroutine needs it.
    """

    def __init__(self, stack: Any) -> None:
        self._stack = stack
        self._items = storage_of(stack)
        self._identify: Callable[[], Any] = getattr(stack, "__ident_func__", None)  # type: ignore[assignment]

    def replace(self, item: Any) -> Any:
        """Make an item the top. Return what :meth:`restore` takes."""
        if self._items is None:
            return self._stack.push(item)
        thread = self._identify()
        before = self._items.get(thread)
        self._items[thread] = {"stack": [item]}
        return before

    def restore(self, before: Any) -> None:
        """Undo :meth:`replace`."""
        if self._items is None:
            self._stack.pop()
        elif before is None:
            self._items.pop(self._identify(), None)
        else:
            self._items[self._identify()] = before


#: The task that runs.
running_task: StackTop = StackTop(_task_stack)
