"""One thread that returns claimed batches which wait too long behind a running one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..context import WorkerContext
from ..ports import EXIT_CRASHED
from .claim_window import MAX_WAIT_BEHIND_RUN
from .lane import Lane


class WindowReaper:
    """Returns overdue claims. A lane cannot do so while it runs a batch; the ownership thread must not wait
    for Redis between two renewals.
    """

    def __init__(self, ctx: WorkerContext, lanes: Sequence[Lane]) -> None:
        self._clock = ctx.clock
        self._host = ctx.host
        self._lanes = lanes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="lowkiq-window-reaper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; call it when the lanes have ended."""
        self._stop.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def _main(self) -> None:
        try:
            while not self._stop.wait(MAX_WAIT_BEHIND_RUN / 2):
                for lane in self._lanes:
                    lane.return_overdue(self._clock.monotonic())
        except Exception as error:  # noqa: BLE001 - a bug of ours must not go unnoticed
            self._host.last_words(error)
            self._host.stop(EXIT_CRASHED, f"{self._thread.name}: {error!r}")
