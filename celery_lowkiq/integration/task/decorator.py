"""``@ordered_task``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

from celery import Celery, shared_task
from typing_extensions import TypeVar, Unpack

from celery_lowkiq.integration.app.current_app import current_app_task
from celery_lowkiq.integration.app.option_names import naming

from .base_classes import R, ordered_base
from .options import TaskOptions, as_attributes, check_function, check_names_of, check_options
from .task import OrderedTask

#: What the function of a task gets: its payloads by id, those with the smallest score first.
Batch = dict[str, list[Any]]
Function = Callable[[Batch], R]
BoundFunction = Callable[[Any, Batch], R]
TaskT = TypeVar("TaskT", bound=OrderedTask[Any])


class AppBoundTask(OrderedTask[R]):
    """The base of a task that names none: as with Celery's decorators, it gets what its app has for all tasks
    (``Celery(task_cls=...)``). The task of a library has its app when its class is made.
    """

    abstract = True

    def __init_subclass__(cls, **options: Any) -> None:
        app = cls.__dict__.get("app")
        if app is not None and not issubclass(AppBoundTask, app.Task):
            type.__setattr__(cls, "__bases__", (app.Task, AppBoundTask))
        super().__init_subclass__(**options)


@overload
def ordered_task(
    function: Function[R], *, app: Celery | None = None, **options: Unpack[TaskOptions]
) -> OrderedTask[R]: ...


@overload
def ordered_task(
    *, bind: Literal[True], app: Celery | None = None, **options: Unpack[TaskOptions]
) -> Callable[[BoundFunction[R]], OrderedTask[R]]: ...


@overload
def ordered_task(
    *, base: type[TaskT], bind: bool = False, app: Celery | None = None, **options: Unpack[TaskOptions]
) -> Callable[[Callable[..., Any]], TaskT]: ...


@overload
def ordered_task(
    *, bind: Literal[False] = False, app: Celery | None = None, **options: Unpack[TaskOptions]
) -> Callable[[Function[R]], OrderedTask[R]]: ...


def ordered_task(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make an ordered task of a function, with or without options, before or after any app exists.

    The function is called with ``{id: [payload, ...]}``. Options are those of :class:`TaskOptions`; ``app``
    registers the task in that app only, else it belongs to every app.
    Raises ConfigurationError for an invalid option, and for a function that a lane cannot call.
    """
    return _decorator(options) if function is None else _decorator(options)(function)


def _decorator(options: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Any]:
    app: Celery | None = options.get("app")
    given = {name: value for name, value in options.items() if name != "app"}

    def decorate(function: Callable[..., Any]) -> Any:
        with naming(str(given.get("name") or getattr(function, "__qualname__", function))):
            base = ordered_base(given.get("base", AppBoundTask), OrderedTask)
            check_names_of(given, base)
            check_options(given, base)
            check_function(function, bound=bool(given.get("bind")))
        attributes = {**as_attributes(given), "base": base}
        if app is None:
            shared_task(**attributes)(function)
            return current_app_task(function, given.get("name"))
        return app.task(**{"shared": False, **attributes})(function)

    return decorate
