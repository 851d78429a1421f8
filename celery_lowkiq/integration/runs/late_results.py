"""Writes results that wait behind a long run of their lane."""

from __future__ import annotations

import threading
import time

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger

from .result_buffer import ResultBuffer

#: Results that have waited for this many s are written while their lane runs something else.
MAX_DELAY = 0.03
#: Seconds between two looks at the buffers, while one of them holds a result.
INTERVAL = 0.01
#: The thread ends when no result was held for this many s.
MAX_IDLE = 1.0


class ResultBuffers:
    """The buffers of all lanes, and a thread that writes late results: it lives while there are any."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[ResultBuffer] = []
        #: Set when a buffer holds a result.
        self._filled = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @property
    def own(self) -> ResultBuffer:
        """The buffer of the calling lane."""
        buffer: ResultBuffer | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = ResultBuffer()
            self._all.append(buffer)
        return buffer

    def watch(self) -> None:
        """Call after a result was added."""
        if not self._filled.is_set():
            self._filled.set()
        if self._thread is None:
            with self._starting:
                self._start()

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._main, name="lowkiq-late-results", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("results may wait behind long runs, since a thread cannot start: %s", error)
        else:
            self._thread = thread

    def _main(self) -> None:
        while self._filled.wait(MAX_IDLE) or not self._ends():
            self._filled.clear()
            while any(buffer.waits for buffer in self._all):
                # No event, which the run of each result would set: that costs it a switch of threads.
                time.sleep(INTERVAL)
                for buffer in self._all:
                    buffer.write_late(time.monotonic() - MAX_DELAY)

    def _ends(self) -> bool:
        with self._starting:
            if self._filled.is_set():
                return False
            self._thread = None
            return True
