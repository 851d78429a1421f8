"""The name by which a child process finds the app: that of a module's attribute."""

from __future__ import annotations

import sys

from celery import Celery

from celery_lowkiq.rules.errors import ConfigurationError

#: Environment variable by which the fork server finds the app.
PRELOADED_APP = "LOWKIQ_PRELOADED_APP"


def reference_to(app: Celery) -> str:
    """Return ``module:attribute`` of the app. Raises ConfigurationError when no module has it."""
    found = sorted(
        # In the program itself only when no module has it: a child imports the program under another name.
        (module_name == "__main__", module_name, name)
        for module_name, module in list(sys.modules.items())
        if not module_name.startswith("celery.")
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app
    )
    if not found:
        raise ConfigurationError(
            f"run_in='process' is invalid: expected an app that a module has, and none has {app!r}. "
            "Assign it to a name at the top of a module"
        )
    _, module_name, name = found[0]
    return f"{module_name}:{name}"
