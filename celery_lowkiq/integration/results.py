"""Results of calls, made when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from celery.app.task import Task
from celery.backends.base import DisabledBackend
from celery.result import AsyncResult
from kombu.utils.uuid import uuid
from vine import promise

from celery_lowkiq.rules.basics import cached_property


def stores_result(task: Any, ignore_result: bool | None = None) -> bool:
    """True if a call's result is stored. ``ignore_result``: option of the call; None: that of its task."""
    ignored = task.ignore_result if ignore_result is None else ignore_result
    return not (ignored or isinstance(task.backend, DisabledBackend))


def stores_error(task: Any, ignore_result: bool | None = None) -> bool:
    """True if a call's error is stored; see :func:`stores_result`."""
    return stores_result(task, False if task.store_errors_even_if_ignored else ignore_result)


# Lazy results: most callers do not look at the result of a call.

T = TypeVar("T")

#: Any to mypy: celery-types declares as attributes what _LazyResult has as properties.
_AsyncResult: Any = AsyncResult
#: Attribute of an app's ``AsyncResult``: its lazy form.
_LAZY = "_lowkiq_lazy"


def lazy_result(task: Any, task_id: str | None) -> AsyncResult[Any]:
    """Return the AsyncResult of a stored call. ``task_id`` None: the id is made when it is read.

    Celery's own looks up its backend when it is made, and when it is deleted. This one does when the backend
    is used. An app or task with an AsyncResult of its own gets that one.
    """
    app = task._get_app()
    # Celery's property takes longer than the rest.
    own = app.__dict__.get("AsyncResult") or app.AsyncResult
    lazy = own.__dict__.get(_LAZY) or _lazy_class(own)
    # get() of an ignored result must not block.
    ignored = bool(task.ignore_result)
    if lazy is not None and type(task).AsyncResult is Task.AsyncResult:
        return lazy(task, task_id, ignored)  # type: ignore[no-any-return]
    made: AsyncResult[Any] = task.AsyncResult(task_id or uuid())
    made.ignored = ignored
    return made


def as_lazy(task: Any, made: T) -> T:
    """Result of a call made in a thread, for its caller outside of it.

    Celery's AsyncResult has the backend of this thread; it is replaced by a lazy one.
    """
    if type(made) is not task._get_app().AsyncResult:
        return made
    result: Any = made
    lazy: Any = lazy_result(task, result.id)
    lazy.ignored = result.ignored
    return lazy  # type: ignore[no-any-return]


class _LazyResult(_AsyncResult):  # type: ignore[misc]
    """An AsyncResult whose parts are made at their first use."""

    parent: Any = None
    _cache = None

    def __init__(self, task: Any, task_id: str | None, ignored: bool) -> None:
        self._task = task
        self._ignored = ignored
        if task_id is not None:
            self.__dict__["id"] = task_id

    @cached_property
    def id(self) -> str:
        """The task id. Threads that ask at the same time get the same one."""
        return str(uuid())

    @cached_property
    def backend(self) -> Any:
        return self._task.backend

    @cached_property
    def on_ready(self) -> Any:
        return promise(self._on_fulfilled, weak=True)

    def __copy__(self) -> AsyncResult[Any]:
        """Return Celery's AsyncResult: its ``__copy__`` passes arguments that this class does not take."""
        copied: AsyncResult[Any] = self.app.AsyncResult(*self.__reduce_args__())
        return copied

    def __del__(self) -> None:
        # A backend that was not used has nothing pending of the result.
        if "backend" in self.__dict__:
            super().__del__()


def _lazy_class(own: Any) -> Any:
    """Make the lazy form of an app's ``AsyncResult``, which keeps it; None for one that is not Celery's."""
    if own.__mro__[1:] != AsyncResult.__mro__:
        return None
    lazy = type(own.__name__, (_LazyResult, own), {"__module__": own.__module__})
    setattr(own, _LAZY, lazy)
    return lazy


class CallResults(Sequence["AsyncResult[Any]"]):
    """Results of a bulk call, in its order. Each AsyncResult is made at its first access."""

    def __init__(self, task: Any, ids: Sequence[str]) -> None:
        self._task = task
        self.ids = ids

    @overload
    def __getitem__(self, index: int) -> AsyncResult[Any]: ...

    @overload
    def __getitem__(self, index: slice) -> CallResults: ...

    def __getitem__(self, index: int | slice) -> AsyncResult[Any] | CallResults:
        if isinstance(index, slice):
            return CallResults(self._task, self.ids[index])
        return lazy_result(self._task, self.ids[index])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<CallResults of {len(self)} calls>"
