"""The line that a process writes before strict exclusion ends it: SIGKILL leaves none."""

from __future__ import annotations

import logging
import math
import threading

from celery_lowkiq.rules.clock import Clock

from .owned_shard import Held

logger = logging.getLogger("celery_lowkiq.worker")

#: Part of the lease time T that is left when it is written. Three renewals have failed by then.
LEFT = 0.15


class LastLine:
    """A thread that writes it. A process that is stopped, or that holds the interpreter's lock, cannot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._held: Held | None = None
        #: Until when the thread sleeps at most (monotonic time), and whether it has written.
        self._wakes_at = -math.inf
        self._written = False
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="lowkiq-last-line", daemon=True)
        self._thread.start()

    def expect(self, held: Held | None) -> None:
        """This lease is the first to run out under a batch; None while nothing runs. Wakes the thread only
        where it would be late: about once in a lease time while batches run.
        """
        with self._changed:
            self._held = held
            if self._written or _due(held) < self._wakes_at:
                self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _main(self) -> None:
        with self._changed:
            while not self._closed:
                self._rest(self._write_if_due())

    def _rest(self, seconds: float) -> None:
        self._wakes_at = self._clock.monotonic() + seconds
        self._changed.wait(None if seconds == math.inf else seconds)

    def _write_if_due(self) -> float:
        """Seconds until it may be due."""
        held, now = self._held, self._clock.monotonic()
        if held is None or now < _due(held):
            if self._written:
                logger.warning(
                    "strict exclusion lets this process go on: the batch, or a renewal, was in time"
                )
            self._written = False
            return _due(held) - now
        if not self._written:
            _write(held, now)
        self._written = True
        return math.inf


def _due(held: Held | None) -> float:
    return math.inf if held is None else held.deadline - LEFT * held.seconds


def _write(held: Held, now: float) -> None:
    logger.critical(
        "strict exclusion ends this process (SIGKILL) in %.1f s, while a batch of shard %s runs: its lease "
        "was renewed last %.1f s ago. Either Redis does not answer, or the run takes longer than its "
        "max_run: see the lines above. The next owner of the shard runs the batch again.",
        max(0.0, held.deadline - now),
        held.shard,
        now - held.renewed_at,
    )
