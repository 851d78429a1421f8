"""Names what blocks the event loop of a node."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from types import FrameType

from celery_lowkiq.rules.loggers import package_logger as logger

from .event_loop import NodeLoop

#: Seconds after which a loop that runs nothing else is blocked.
BLOCKED = 1.0
#: Seconds between looks.
INTERVAL = 0.5


class Watchdog:
    """Logs once, with the stack of the loop's thread, that a body blocks it."""

    def __init__(self, loop: NodeLoop) -> None:
        self._loop = loop
        self._stopped = threading.Event()
        self._logged: float | None = None
        threading.Thread(target=self._main, name="lowkiq-loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _main(self) -> None:
        while not self._stopped.wait(INTERVAL) and self._loop.thread.is_alive():
            look_at = self._loop.look_at
            late = 0.0 if look_at is None else time.monotonic() - look_at
            if late >= BLOCKED and look_at != self._logged:
                self._logged = look_at
                self._log(late)

    def _log(self, late: float) -> None:
        frame = _frame_of(self._loop.thread)
        names = ", ".join(bodies.name for bodies in self._loop.running if bodies.stepping)
        logger.warning(
            "the event loop has been blocked for %.1f s by %s, and with it all other runs. Await in an "
            "async def task, use asyncio.to_thread, or set lowkiq_loop = 'lane'. It is at:\n%s",
            late,
            names or "what is no body of a run",
            "".join(traceback.format_stack(frame)),
        )


def _frame_of(thread: threading.Thread) -> FrameType | None:
    """Return what a thread executes now.

    Python 3.11 holds a lock while it makes the dict of frames. A garbage collection that begins there waits
    for that lock, and with it all threads, for ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread.ident or 0)
    finally:
        if enabled:
            gc.enable()
