"""The results of a lane's plain runs that are written together, before their jobs are settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.rules.models import Batch, Settlement

from .decisions import return_batch
from .redis_results import EncodedResult, write, writes_together

#: Seconds in which runs are repeated whose results could not be written; the rest of them run again.
MAX_REPEATING = 5.0


class HeldResult(NamedTuple):
    """A result to write, and what becomes of its run then."""

    #: Monotonic s.
    held_at: float
    encoded: EncodedResult
    batch: Batch
    #: The settlements once the result is written.
    done: tuple[Settlement, ...]
    #: Repeats the run through Celery's tracer, and returns the settlements, when it cannot be written.
    repeat: Callable[[], tuple[Settlement, ...]]


class ResultBuffer:
    """Filled and emptied by one lane; :meth:`write_late` is called from another thread."""

    def __init__(self) -> None:
        self._backend: Any = None
        self._is_suitable = False
        self._held: list[HeldResult] = []
        #: What the results have in common, for :func:`encode`.
        self.common: dict[str, Any] = {}
        #: How many of these are written.
        self._written = 0
        #: Whether :meth:`write_late` has failed: the lane meets the error, and handles it.
        self._has_failed = False
        #: Locked while results are written, or taken out.
        self._writing = threading.Lock()

    def accepts(self, backend: Any) -> bool:
        """Whether results for this backend can be added."""
        if backend is not self._backend and not self._held:
            self._backend, self._is_suitable = backend, writes_together(backend)
            self.common = {}
        return self._is_suitable and backend is self._backend

    def add(self, held: HeldResult) -> None:
        """Hold a result back."""
        self._held.append(held)

    @property
    def waits(self) -> bool:
        """Whether :meth:`write_late` may have something to write, now or later."""
        return self._written < len(self._held) and not self._has_failed

    def write_late(self, before: float) -> None:
        """Write what there is, if the first of it was added ``before`` this monotonic s."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            held = self._held[self._written :]
            if held and not self._has_failed and held[0].held_at < before:
                write(self._backend, [one.encoded for one in held], retry=False)
                self._written += len(held)
        except Exception:  # noqa: BLE001 - the lane tries again
            self._has_failed = True
        finally:
            self._writing.release()

    def flush(self) -> tuple[Settlement, ...]:
        """Write all results. Returns the settlements of their jobs."""
        if not self._held:
            return ()
        with self._writing:
            held, written = self._held, self._written
            self._held, self._written, self._has_failed = [], 0, False
            self.common = {}
            try:
                if written < len(held):
                    write(self._backend, [one.encoded for one in held[written:]], retry=True)
                written = len(held)
            except Exception as error:  # noqa: BLE001 - each run that is repeated meets its own
                logger.debug("results are written one by one, since together failed: %s", error)
        done = [settlement for one in held[:written] for settlement in one.done]
        return (*done, *_repeat(held[written:]))


def _repeat(unwritten: Sequence[HeldResult]) -> list[Settlement]:
    settlements: list[Settlement] = []
    until = time.monotonic() + MAX_REPEATING
    for number, held in enumerate(unwritten):
        if time.monotonic() > until:
            logger.warning(
                "%d jobs of %s run again, since their results could not be written in time",
                len(unwritten) - number,
                held.batch.queue.name,
            )
            return settlements + [v for one in unwritten[number:] for v in return_batch(one.batch)]
        settlements += held.repeat()
    return settlements
