"""Releases shards at the exit of a process whose batches still run."""

from __future__ import annotations

import logging
import threading

from celery_lowkiq.rules.ownership import EXIT_TIMEOUT
from celery_lowkiq.worker.runtime import Runtime

#: ``logging`` has only weak references to handlers.
_exit_hooks: list[_ExitHook] = []


def release_shards_at_exit(runtime: Runtime) -> None:
    """Release the shards of an abandoned runtime when the process exits.

    This runs as late as possible: batches run until Python stops all threads, right after the ``atexit``
    functions, and no other node may begin them before that.
    """
    _exit_hooks.append(_ExitHook(runtime))


class _ExitHook(logging.NullHandler):
    """A logging handler used only as a late exit hook.

    A function registered with ``atexit`` now would run before those registered earlier, which may take long,
    such as Sentry's flush. ``logging`` was imported before them, and closes all handlers in its own function.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._begun = False

    def close(self) -> None:
        super().close()
        # While the main thread is alive, this is a reconfiguration of logging: batches go on.
        if self._begun or threading.main_thread().is_alive():
            return
        self._begun = True
        # Close the other handlers first, since they may take long; closing them again takes no time.
        try:
            logging.shutdown()
        finally:
            if not self._runtime.join(0):
                self._runtime.release_at_exit(EXIT_TIMEOUT)
