"""Imported by the fork server: loads the app, which the child processes then have from their start."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from billiard.util import get_pdeathsig  # type: ignore[attr-defined]

from celery_lowkiq.integration.app.context import context_of

from .app_reference import PRELOADED_APP, import_app


def load(reference: str, *modules: str) -> None:
    """Import the app and its modules. An error is left to the child, which imports them again."""
    with contextlib.suppress(Exception):
        app: Any = import_app(reference)
        app.loader.import_default_modules()
        for module in modules:
            app.loader.import_task_module(module)
        app.finalize()
        # What these import and look up for the first time costs a child more than the rest of its start.
        context_of(app).redis_parameters()
        get_pdeathsig()


if PRELOADED_APP in os.environ:
    load(*os.environ[PRELOADED_APP].split(","))
