"""Logs why strict exclusion ends a process, shortly before it does: SIGKILL itself leaves no line."""

from __future__ import annotations

import math
import threading

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.loggers import worker_logger as logger

from .owned_shard import OwnedShard

#: Fraction of the lease time that is left when the line is written, after three failed renewals.
LEFT = 0.15


class LastLine:
    """A thread that writes the line, unless the process is stopped or its interpreter lock is taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._owned: OwnedShard | None = None
        #: Latest monotonic time at which the thread wakes, and whether it has written.
        self._wakes_at = -math.inf
        self._written = False
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="lowkiq-last-line", daemon=True)
        self._thread.start()

    def expect(self, owned: OwnedShard | None) -> None:
        """Set the lease that runs out first under a batch; None while nothing runs.

        Wakes the thread only if it would be late: about once in a lease time while batches run.
        """
        with self._changed:
            self._owned = owned
            if self._written or _due(owned) < self._wakes_at:
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
        """Return seconds until the line may be due."""
        owned, now = self._owned, self._clock.monotonic()
        if owned is None or now < _due(owned):
            if self._written:
                logger.warning(
                    "strict exclusion lets this process go on: its batch ended, or its lease was renewed"
                )
            self._written = False
            return _due(owned) - now
        if not self._written:
            _write(owned, now)
        self._written = True
        return math.inf


def _due(owned: OwnedShard | None) -> float:
    return math.inf if owned is None else owned.deadline - LEFT * owned.lease_seconds


def _write(owned: OwnedShard, now: float) -> None:
    logger.critical(
        "strict exclusion ends this process (SIGKILL) in %.1f s, while a batch of shard %s runs: its lease "
        "was renewed last %.1f s ago. Either Redis does not answer, or the run takes longer than its "
        "max_run: see the lines above. The next owner of the shard runs the batch again.",
        max(0.0, owned.deadline - now),
        owned.shard,
        now - owned.renewed_at,
    )
