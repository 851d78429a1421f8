"""Imported by the fork server: loads the app, which the child processes then have from their start."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from billiard.util import get_pdeathsig  # type: ignore[attr-defined]

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.processes.app_reference import PRELOADED_APP, import_app
from celery_lowkiq.worker import forks


def load(reference: str, *modules: str) -> None:
    """Import the app and its modules. An error is left to the child, which imports them again."""
    with contextlib.suppress(Exception):
        app: Any = import_app(reference)
        app.loader.import_default_modules()
        for module in modules:
            app.loader.import_task_module(module)
        app.finalize()
        # The first imports and look-ups of these cost a child more than the rest of its start.
        context_of(app).redis_parameters()
        get_pdeathsig()


def unblock_stop_signals_of(server: int) -> None:
    """Let stop signals reach what process ``server`` forks: users start processes by it, too.

    A child of a lane that ends before it is set up has begun no run, and counts no crash.
    """

    def unblock() -> None:
        if os.getppid() == server:
            forks.unblock()

    os.register_at_fork(after_in_child=unblock)


if PRELOADED_APP in os.environ:
    unblock_stop_signals_of(os.getpid())
    load(*os.environ[PRELOADED_APP].split(","))
