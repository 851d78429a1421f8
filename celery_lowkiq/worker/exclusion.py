"""What happens to a batch that runs past its lease: it goes on, or ends with its process."""

from __future__ import annotations

import threading
from typing import Protocol

from celery_lowkiq.rules.models import ShardRef

from .held import Held


class Exclusion(Protocol):
    """Told by lanes and ownership what runs, and under which leases."""

    #: Whether a batch that runs for longer than ``max_run`` loses its lease.
    ends_overdue: bool
    #: Whether a node whose process ends may give up a shard whose batch still runs.
    gives_up_running: bool

    def begin(self, held: Held) -> None:
        """A batch of the shard is about to run."""

    def end(self, held: Held) -> None:
        """It has run."""

    def renewed(self) -> None:
        """Deadlines have moved."""


class Cooperative:
    """A batch that runs past its lease goes on; its settle is refused when another node has the shard."""

    ends_overdue = False
    gives_up_running = True

    def begin(self, held: Held) -> None: ...

    def end(self, held: Held) -> None: ...

    def renewed(self) -> None: ...


class Timer(Protocol):
    """What ends the process."""

    def set(self, at: float | None) -> None:
        """End it at this monotonic time (s); never, for None."""


class Strict:
    """Keeps a timer that ends the process at the earliest deadline among the shards of running batches."""

    ends_overdue = True
    gives_up_running = False

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._lock = threading.Lock()
        self._running: dict[ShardRef, Held] = {}

    def begin(self, held: Held) -> None:
        with self._lock:
            self._running[held.shard] = held
            self._set()

    def end(self, held: Held) -> None:
        with self._lock:
            self._running.pop(held.shard, None)
            self._set()

    def renewed(self) -> None:
        with self._lock:
            if self._running:
                self._set()

    def _set(self) -> None:
        self._timer.set(min((held.deadline for held in self._running.values()), default=None))
