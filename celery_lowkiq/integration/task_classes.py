"""Parts that an ordered task takes from foreign task classes: the user's own, and Django's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from celery import Celery
from celery.app.task import Task
from kombu.utils.imports import symbol_by_name
from typing_extensions import TypeVar

from celery_lowkiq.integration.options import OPTIONS, as_attributes
from celery_lowkiq.integration.run import report
from celery_lowkiq.rules.errors import ConfigurationError

#: Celery's task class. To mypy it is Any, because celery-types lacks much that a subclass may rely on.
CeleryTask: type[Task[..., Any]] = Task
#: Result of a task's function.
R = TypeVar("R", default=Any)


def set_options(cls: Any, ordered: type) -> None:
    """Let the options of all classes of a task hold, also the options of a class behind ``ordered``."""
    for name, value in _given(cls, ordered).items():
        if name in OPTIONS and inspect.getattr_static(cls, name) is not value:
            setattr(cls, name, value)


def given_options(cls: Any, ordered: type, app: Celery | None = None) -> dict[str, Any]:
    """Options of a class that is neither ours nor Celery's, and of its bases, without the options that Celery
    has set from the settings of ``app``.
    """
    filled = () if app is None else names_from_settings(cls, app)
    given = {name: value for name, value in _given(cls, ordered).items() if name not in filled}
    # Looked up as at run time: a method gets its self.
    return {**given, "retry_in": object.__new__(cls).retry_in}


def _given(cls: type, ordered: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(ordered, base):
            found.update(as_attributes(vars(base), base.__qualname__))
    return found


def names_from_settings(task: Any, app: Celery) -> set[str]:
    """Names of the options that have the value which Celery sets from the app's settings."""
    return {name for name, setting in task.from_config if getattr(task, name) == app.conf[setting]}


def guard_call(cls: Any, ordered: Any) -> None:
    """Wrap a user-defined ``__call__``. Raises ConfigurationError for one that would never be called."""
    call, ours = cls.__call__, ordered.__call__
    hidden = _given(cls, ordered).get("__call__")
    if call is ours and hidden is not None:
        name = hidden.__qualname__
        raise ConfigurationError(f"{name} would not be called: write its class before {ordered.__name__}")
    if call is not ours and not hasattr(call, "guarded"):
        cls.__call__ = _guarded(call, ours)


def guard_before_start(cls: Any) -> None:
    """Wrap a user-defined ``before_start``: an exception in it fails the run."""
    before = cls.before_start
    if before is CeleryTask.before_start or hasattr(before, "guarded"):
        return

    @functools.wraps(before)
    def guard(self: Any, *args: Any) -> Any:
        if getattr(self.request, "lowkiq_play", None) is not None:
            return report(before, self, *args)
        run = getattr(self.request, "lowkiq_run", None)
        return before(self, *args) if run is None else run.capture(lambda: before(self, *args))

    guard.__dict__["guarded"] = True
    cls.before_start = guard


def _guarded(call: Any, ordered_call: Callable[..., Any]) -> Any:
    """Wrap a user-defined ``__call__``: it is called for each run, and not when a call gets its outcome.

    An exception that leaves it fails the run. When it has handled the exception of the function, or has not
    called the function, the run succeeds.
    """

    @functools.wraps(call)
    def guard(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.request, "lowkiq_play", None) is not None:
            return ordered_call(self, *args, **kwargs)
        run = getattr(self.request, "lowkiq_run", None)
        if run is None or self.request._protected:
            return call(self, *args, **kwargs)
        result = run.capture(lambda: call(self, *args, **kwargs))
        if run.decided and (run.replay is not None or not run.has_failed):
            return result
        return run.capture(lambda: run.succeed(result if run.replay is None else run.replay()))

    guard.__dict__["guarded"] = True
    return guard


def adapt_run(cls: Any, ordered: Any) -> None:
    """Let ``self.run`` in a user-defined ``__call__``, as Flask's documentation has it, do what
    ``super().__call__`` does.
    """
    own = inspect.getattr_static(cls, "run")
    if cls.__call__ is ordered.__call__ or hasattr(own, "lowkiq_call"):
        return

    @functools.wraps(own)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.request_stack.top
        if request is None or request.called_directly or request._protected:
            return own.__get__(self, type(self))(*args, **kwargs)
        return ordered.__call__(self, *args, **kwargs)

    run.__dict__.update(lowkiq_call=True, lowkiq_own=getattr(own, "lowkiq_own", own))
    cls.run = run


def adopt_on_commit(cls: type, app: Celery) -> None:
    """Copy the methods that the app of a Django project has for tasks without a base of their own, and add
    that of bulk calls.
    """
    for name in ("delay_on_commit", "apply_async_on_commit"):
        method = getattr(app.Task, name, None)
        if method is not None and not hasattr(cls, name):
            setattr(cls, name, method)
    if hasattr(cls, "delay_on_commit") and not hasattr(cls, "perform_async_on_commit"):
        cls.perform_async_on_commit = _perform_async_on_commit  # type: ignore[attr-defined]


def _perform_async_on_commit(self: Any, jobs: Iterable[Any], **options: Any) -> None:
    """Call ``perform_async`` when the transaction is committed; at once outside of one.

    The jobs are read now, and checked then.
    """
    transaction: Any = symbol_by_name("django.db:transaction")
    transaction.on_commit(functools.partial(self.perform_async, list(jobs), **options))
