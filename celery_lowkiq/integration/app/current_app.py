"""The app of a task that belongs to every app: the thread's current one, else the one that bound the task.

Celery's current app belongs to a thread. In a thread that did not make the app, and without
``app.set_default()``, Celery uses a default app, which has none of the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, _state
from celery.local import Proxy

#: Celery types none of it.
_celery: Any = _state

NO_APP = (
    "this thread has no current Celery app: call app.set_default() where the app is made, or name the app "
    "with @ordered_task(app=app)"
)


def is_made_up(app: Celery) -> bool:
    """Whether it is Celery's default app, used since the thread has no app."""
    explicit: Any = app
    return app is _celery.default_app and app.main == "default" and not explicit.set_as_current


def task_of_thread(function: Callable[..., Any], name: str | None) -> Any:
    """A proxy, as ``shared_task`` returns it, of the task that this thread's app has for the function."""

    def find() -> Any:
        app: Celery = _state.get_current_app()
        if is_made_up(app):
            app = _binder(function, name) or app
        return app.tasks[_name_in(app, function, name)]

    return Proxy(find)


def _binder(function: Callable[..., Any], name: str | None) -> Celery | None:
    """The app that has bound the function; None when there is none, or more than one."""
    found = [app for app in set(_celery._apps) if _has_bound(app, function, name)]
    return found[0] if len(found) == 1 else None


def _has_bound(app: Celery, function: Callable[..., Any], name: str | None) -> bool:
    bound: Any = app
    if not bound.finalized or is_made_up(app):
        return False
    task = bound._tasks.get(_name_in(app, function, name))
    return task is not None and getattr(task.__wrapped__, "__func__", task.__wrapped__) is function


def _name_in(app: Celery, function: Callable[..., Any], name: str | None) -> str:
    return name or str(app.gen_task_name(function.__name__, function.__module__))
