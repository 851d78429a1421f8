"""``@ordered_task``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from celery import Celery, shared_task

from celery_lowkiq.integration.app.current_app import task_of_thread
from celery_lowkiq.integration.app.option_names import naming

from .base_classes import ordered_base
from .options import as_attributes, check_function, check_names_of, check_options
from .task import OrderedTask


class OfItsApp(OrderedTask):
    """The base of a task that names none: as with Celery's decorators, it gets what its app has for all tasks
    (``Celery(task_cls=...)``). Which app that is, a library's task knows when its class is made.
    """

    abstract = True

    def __init_subclass__(cls, **options: Any) -> None:
        app = cls.__dict__.get("app")
        if app is not None and not issubclass(OfItsApp, app.Task):
            cls.__bases__ = (app.Task, OfItsApp)
        super().__init_subclass__(**options)


def ordered_task(
    function: Callable[..., Any] | None = None, *, app: Celery | None = None, **options: Any
) -> Any:
    """Make an ordered task of a function, with or without options, before or after any app exists.

    The function is called with ``{id: [payload, ...]}``. Options are those of Celery's tasks and those of
    :class:`OrderedTask`; ``app`` registers it in that app only, else it belongs to every app.
    Raises ConfigurationError for a bad option, an async function, or one that does not take one argument.
    """

    def decorate(decorated: Callable[..., Any]) -> Any:
        with naming(str(options.get("name") or getattr(decorated, "__qualname__", decorated))):
            base = ordered_base(options.get("base", OfItsApp), OrderedTask)
            check_names_of(options, base)
            check_options(options, base)
            check_function(decorated, bound=bool(options.get("bind")))
        attributes = {**as_attributes(options), "base": base}
        if app is None:
            shared_task(**attributes)(decorated)
            return task_of_thread(decorated, options.get("name"))
        return app.task(**{"shared": False, **attributes})(decorated)

    return decorate if function is None else decorate(function)


# Celery's command line shows the commands that it knows; a producer does without Celery's worker.
if "celery.worker.control" in sys.modules:
    from celery_lowkiq.integration.bootstep import remote_control  # noqa: F401
