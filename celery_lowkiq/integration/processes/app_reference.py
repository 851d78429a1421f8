"""The name by which a child process finds the app: that of a module's attribute."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.utils.imports import import_from_cwd
from kombu.utils.imports import symbol_by_name

from celery_lowkiq.integration.safe_logging import safe_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError

#: Environment variable by which the fork server finds the app, and the modules to import after it.
PRELOADED_APP = "LOWKIQ_PRELOADED_APP"


#: Packages whose own variables name the app only while this process lives.
NOT_OF_USERS = ("celery", "kombu", "celery_lowkiq")


def locate(app: Celery) -> str | None:
    """Return ``module:attribute`` of the app; None if no module has it."""
    found = references(app)
    return ":".join(found[0]) if found else None


def references(app: Celery) -> list[tuple[str, str]]:
    """Return each module that has the app, and the name of its attribute."""
    found = sorted(
        # In the program itself only when no module has it: a child imports the program under another name.
        (module_name == "__main__", module_name, name)
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] not in NOT_OF_USERS
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app
    )
    return [(module_name, name) for _, module_name, name in found]


def modules_of(app: Celery, tasks: Iterable[Any]) -> list[str]:
    """Return the modules that have the app or a task: that of the app need not import the others."""
    return sorted({name for name, _ in references(app)} | {task.__module__ for task in tasks})


def reference_to(app: Celery) -> str:
    """Return ``module:attribute`` of the app. Raises ConfigurationError when no module has it."""
    found = locate(app)
    if found is None:
        raise ConfigurationError(
            f"run_in='process' is invalid: expected an app that a module has, and none has {app!r}. "
            "Assign it to a name at the top of a module"
        )
    return found


def import_app(reference: str) -> Celery:
    """Import the app of ``module:attribute``, as ``celery -A`` does: modules may be in the current folder."""
    app: Celery = symbol_by_name(reference, imp=import_from_cwd)
    return app


def import_modules(app: Any, modules: Iterable[str], process: str) -> None:
    """Import what :func:`modules_of` has found. ``process`` names this one in the warning about a failure."""
    for module in modules:
        try:
            app.loader.import_task_module(module)
        except ImportError as error:
            logger.warning("%s cannot import %s, as the worker did: %s", process, module, error)
