"""Makes an existing task of an app ordered, in place: every reference to it stays valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import _state
from celery.app.autoretry import add_autoretry_behaviour

from celery_lowkiq.integration.app.option_names import naming
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.validators import invalid

from .base_classes import names_from_settings
from .call_options import LIMITS
from .options import as_attributes, check_names_of
from .task import OrderedTask

#: Options that Celery applies while it makes a task.
OF_A_DECORATOR = frozenset({"app", "base", "bind", "name", "shared"}) | {
    *("pydantic", "pydantic_context", "pydantic_dump_kwargs", "pydantic_strict")
}


def order_existing(task: Any, options: Mapping[str, Any]) -> Any:
    """Give a task the class that it would have had with these options beside its own.

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
    _forget_settings(task)
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
    if task.app is vars(_state)["default_app"] and task.app.main == "default":
        # Celery makes this app where there is no other.
        raise ConfigurationError("no app is set up yet: call ordered_task below app = Celery(...)")
    for name in sorted(OF_A_DECORATOR & options.keys()):
        fix = "Give it where the task is declared"
        raise ConfigurationError(invalid(name, options[name], "no such option for an existing task", fix))
    if isinstance(task, OrderedTask):
        raise ConfigurationError("it is an ordered task already: change the options of its decorator")
    check_names_of(options, OrderedTask, type(task))


def _forget_settings(task: Any) -> None:
    """Let the settings be applied to the new class, not inherited as options of the task."""
    plain = type(task)
    for name in vars(plain).keys() & names_from_settings(task, task.app):
        delattr(plain, name)
