"""The end of a worker's process while batches of it still run."""

from __future__ import annotations

import atexit

from celery_lowkiq.rules.ownership import EXIT_PATIENCE
from celery_lowkiq.worker.runtime import Runtime


def let_go_at_exit(runtime: Runtime) -> None:
    """Give up what an abandoned runtime still has, when the process ends.

    As its last act: Python stops all threads right after the functions that run at exit, and until then a
    batch may go on, which nobody else may begin.
    """

    def let_go() -> None:
        atexit.unregister(let_go)
        if runtime.join(0):
            return
        # The others may take their time, as what sends the last events to Sentry.
        atexit._run_exitfuncs()
        runtime.let_go(EXIT_PATIENCE)

    atexit.register(let_go)
