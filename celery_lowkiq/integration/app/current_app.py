"""Resolve a shared task's app: the thread's current app, else the only app, else the app that bound the task.

Celery's current app is thread-local. In a thread other than the one that created the app, without
``app.set_default()``, Celery creates a fallback app without the user's settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, _state
from celery.local import Proxy

#: ``celery._state`` has no types.
_celery: Any = _state

NO_APP = (
    "this thread has no current Celery app: call app.set_default() where the app is created, or pass the app "
    "to @ordered_task(app=app)"
)


def is_fallback_app(app: Celery) -> bool:
    """Whether the app is Celery's fallback for a thread without an app."""
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
