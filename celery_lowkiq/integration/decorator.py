"""The decorator, and existing tasks that become ordered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, Protocol, overload

from celery import Celery, _state, shared_task
from celery.app.autoretry import add_autoretry_behaviour
from celery.app.task import Task
from celery.result import AsyncResult
from typing_extensions import ParamSpec, TypeVar, Unpack

from celery_lowkiq.integration.call_form import By, check_readable
from celery_lowkiq.integration.current import current_app_task, is_fallback_app
from celery_lowkiq.integration.options import (
    LIMITS,
    InPlaceOptions,
    TaskOptions,
    as_attributes,
    check_names_of,
    check_task,
    check_values,
    naming,
)
from celery_lowkiq.integration.settings import read_setting
from celery_lowkiq.integration.task import OrderedTask
from celery_lowkiq.integration.task_classes import R, given_options, names_from_settings
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.validators import invalid

# Makes an existing task of an app ordered, in place: every reference to it stays valid.

#: Options that Celery applies while it makes a task.
OF_A_DECORATOR = frozenset({"app", "base", "bind", "name", "shared"}) | {
    *("pydantic", "pydantic_context", "pydantic_dump_kwargs", "pydantic_strict")
}


def order_existing(task: Any, options: Mapping[str, Any]) -> Any:
    """Give a task the class that it would have with these options beside its own.

    Do this before workers and callers use it. Raises ConfigurationError for a task that is ordered already,
    and for options that an ordered task refuses; the task is a plain one then, as before.
    """
    task = getattr(task, "_get_current_object", lambda: task)()
    plain: Any = type(task)
    with naming(task.name):
        _check(task, options)
    names: dict[str, Any]
    names = {"__module__": plain.__module__, "__doc__": plain.__doc__, "abstract": False, "name": task.name}
    names["_unchecked"] = frozenset(LIMITS) - options.keys()
    # The settings are applied to the new class, not inherited as options of the task.
    for name in vars(plain).keys() & names_from_settings(task, task.app):
        delattr(plain, name)
    try:
        ordered: Any = type(plain.__name__, (plain, OrderedTask), {**names, **as_attributes(dict(options))})
        ordered.bind(task.app)
    except BaseException:
        # Applies the settings again.
        plain.bind(task.app)
        raise
    task.__class__ = ordered
    # Celery wraps the function once, by the options that the task had.
    for name in ("run", "_orig_run"):
        vars(task).pop(name, None)
    add_autoretry_behaviour(task)
    return task


def _check(task: Any, options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError unless the task can be made an ordered one with these options."""
    if is_fallback_app(task.app):
        raise ConfigurationError("no app is set up yet: call ordered_task below app = Celery(...)")
    for name in sorted(OF_A_DECORATOR & options.keys()):
        fix = "Give it where the task is declared"
        raise ConfigurationError(invalid(name, options[name], "no such option for an existing task", fix))
    if isinstance(task, OrderedTask):
        raise ConfigurationError("it is an ordered task already: change the options of its decorator")
    check_names_of(options, OrderedTask, type(task))


# ``@ordered_task``.

#: The argument of a task's function: payloads by id, those with the smallest score first.
Batch = dict[str, list[Any]]
Function = Callable[[Batch], R]
BoundFunction = Callable[[Any, Batch], R]
#: The function of a task with ``per_id=True``: the id, and its payloads.
IdFunction = Callable[[str, list[Any]], R]
BoundIdFunction = Callable[[Any, str, list[Any]], R]
#: ``celery._state`` has no types.
_celery: Any = _state
P = ParamSpec("P")
Awaited = Coroutine[Any, Any, R]
TaskT = TypeVar("TaskT", bound=OrderedTask[Any])


class AppBoundTask(OrderedTask[R]):
    """The base class of a task without ``base=``: its app's ``task_cls`` comes first, like in Celery's tasks.

    The task of a library gets its app when its class is made.
    """

    abstract = True

    def __init_subclass__(cls, **options: Any) -> None:
        app = cls.__dict__.get("app")
        if app is not None and not issubclass(AppBoundTask, app.Task):
            type.__setattr__(cls, "__bases__", (app.Task, AppBoundTask))
        super().__init_subclass__(**options)


if TYPE_CHECKING:

    class InPlaceTask(OrderedTask[R], Generic[P, R]):
        """A task with ``by=``: its calls take the arguments of its function."""

        def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]: ...  # type: ignore[override]

        async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]: ...  # type: ignore[override]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class AsyncTask(OrderedTask[R]):
        """A task whose function is ``async def``: a direct call is that of its function."""

        def __call__(self, *args: Any, **kwargs: Any) -> Awaited[R]: ...  # type: ignore[override]

        def run(self, *args: Any, **kwargs: Any) -> Awaited[R]: ...

    class AsyncInPlaceTask(InPlaceTask[P, R]):
        """A task with ``by=`` whose function is ``async def``."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaited[R]: ...  # type: ignore[override]

        def run(self, *args: P.args, **kwargs: P.kwargs) -> Awaited[R]: ...

    class _Plain(Protocol):
        @overload
        def __call__(self, function: Function[Awaited[R]], /) -> AsyncTask[R]: ...
        @overload
        def __call__(self, function: Function[R], /) -> OrderedTask[R]: ...

    class _Bound(Protocol):
        @overload
        def __call__(self, function: BoundFunction[Awaited[R]], /) -> AsyncTask[R]: ...
        @overload
        def __call__(self, function: BoundFunction[R], /) -> OrderedTask[R]: ...

    class _PerId(Protocol):
        @overload
        def __call__(self, function: IdFunction[Awaited[R]], /) -> AsyncTask[R]: ...
        @overload
        def __call__(self, function: IdFunction[R], /) -> OrderedTask[R]: ...

    class _BoundPerId(Protocol):
        @overload
        def __call__(self, function: BoundIdFunction[Awaited[R]], /) -> AsyncTask[R]: ...
        @overload
        def __call__(self, function: BoundIdFunction[R], /) -> OrderedTask[R]: ...

    class _InPlace(Protocol):
        @overload
        def __call__(self, function: Callable[P, Awaited[R]], /) -> AsyncInPlaceTask[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> InPlaceTask[P, R]: ...

    class _BoundInPlace(Protocol):
        @overload
        def __call__(
            self, function: Callable[Concatenate[Any, P], Awaited[R]], /
        ) -> AsyncInPlaceTask[P, R]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> InPlaceTask[P, R]: ...


# The overload of an async def function comes before that of any function, which would take it, too.


@overload
def ordered_task(function: Function[Awaited[R]], **options: Unpack[TaskOptions]) -> AsyncTask[R]: ...


@overload
def ordered_task(function: Function[R], **options: Unpack[TaskOptions]) -> OrderedTask[R]: ...


@overload
def ordered_task(*, by: By, bind: Literal[True], **options: Unpack[InPlaceOptions]) -> _BoundInPlace: ...


@overload
def ordered_task(*, by: By, bind: Literal[False] = False, **options: Unpack[InPlaceOptions]) -> _InPlace: ...


@overload
def ordered_task(
    *, per_id: Literal[True], bind: Literal[True], **options: Unpack[TaskOptions]
) -> _BoundPerId: ...


@overload
def ordered_task(
    *, per_id: Literal[True], bind: Literal[False] = False, **options: Unpack[TaskOptions]
) -> _PerId: ...


@overload
def ordered_task(*, bind: Literal[True], **options: Unpack[TaskOptions]) -> _Bound: ...


@overload
def ordered_task(
    *, base: type[TaskT], bind: bool = False, per_id: bool = False, **options: Unpack[TaskOptions]
) -> Callable[[Callable[..., Any]], TaskT]: ...


@overload
def ordered_task(*, bind: Literal[False] = False, **options: Unpack[TaskOptions]) -> _Plain: ...


def ordered_task(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make an ordered task of a function, with or without options, before or after any app exists.

    The function, which may be ``async def``, is called with ``{id: [payload, ...]}``, with ``per_id=True``
    with an id and its payloads, or with ``by=`` as its callers call it. Options are those of
    :class:`TaskOptions`; ``app`` registers the task in that app only, else it belongs to every app.
    A task of Celery's in place of the function is made ordered itself.
    Raises ConfigurationError for an invalid option, and for a function that a lane cannot call.
    """
    app: Celery | None = options.pop("app", None)

    def decorate(function: Callable[..., Any]) -> Any:
        if isinstance(function, Task):
            return order_existing(function, options if app is None else {**options, "app": app})
        if not callable(function):
            raise ConfigurationError(f"{function!r} is invalid: expected a function, or a task of Celery's")
        with naming(str(options.get("name") or getattr(function, "__qualname__", function))):
            base = _ordered(options.get("base", AppBoundTask))
            check_names_of(options, base)
            check_values(options)
            try:
                given = {**given_options(base, OrderedTask), **options}
                check_task(given, function, bool(options.get("bind")))
            except ConfigurationError:
                if not _has_others(app, base):
                    raise
            check_readable(function)
        attributes = {**as_attributes(options), "base": base}
        if app is None:
            shared_task(**attributes)(function)
            return current_app_task(function, options.get("name"))
        return app.task(**{"shared": False, **attributes})(function)

    return decorate if function is None else decorate(function)


def _has_others(app: Any, base: type) -> bool:
    """Test whether the task may get further options from its app, which checks them when it makes it."""
    known: Any = app or _celery._tls.current_app or _celery.default_app
    if known is None:
        return False
    # Celery derives app.Task from task_cls=.
    has_class = base is AppBoundTask and not issubclass(OrderedTask, known.Task.__mro__[1])
    return has_class or bool(known.conf.task_annotations) or read_setting(known, "run_in") == "process"


def _ordered(base: Any) -> type:
    """The class that the user names, made ordered. Raises ConfigurationError when it is no task class."""
    if not (isinstance(base, type) and issubclass(base, Task)):
        raise ConfigurationError(
            f"base={base!r} is invalid: expected a subclass of OrderedTask, or of Celery's Task"
        )
    given: type = base
    if issubclass(given, OrderedTask):
        return given
    if issubclass(OrderedTask, given):
        return OrderedTask
    return type(given.__name__, (given, OrderedTask), {"abstract": True, "__module__": given.__module__})
