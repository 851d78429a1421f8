"""The end of a worker's process while batches of it still run."""

from __future__ import annotations

import logging
import threading

from celery_lowkiq.rules.ownership import EXIT_PATIENCE
from celery_lowkiq.worker.runtime import Runtime

#: ``logging`` keeps no handler alive.
_last_acts: list[_LastAct] = []


def let_go_at_exit(runtime: Runtime) -> None:
    """Give up what an abandoned runtime still has, when the process ends.

    As its last act: Python stops all threads right after the functions that run at exit, and until then a
    batch may go on, which nobody else may begin.
    """
    _last_acts.append(_LastAct(runtime))


class _LastAct(logging.NullHandler):
    """A log handler for the sake of its end, which comes late.

    A function that ``atexit`` is given now would run before those that it was given earlier, which may take
    their time, as what sends the last events to Sentry. Whoever has such a one has imported ``logging``
    first, and its own function closes all handlers.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._begun = False

    def close(self) -> None:
        super().close()
        # While the main thread is alive, somebody configures logging anew: batches go on.
        if self._begun or threading.main_thread().is_alive():
            return
        self._begun = True
        # The other handlers may take their time as well, and closing them again takes none.
        try:
            logging.shutdown()
        finally:
            if not self._runtime.join(0):
                self._runtime.release_at_exit(EXIT_PATIENCE)
