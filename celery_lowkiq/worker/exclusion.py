"""What happens to a batch that outlives its lease: it goes on (cooperative), or its process ends (strict)."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import Protocol

from celery_lowkiq.rules.models import ShardRef

from .last_line import LastLine
from .owned_shard import OwnedShard


class Exclusion(Protocol):
    """Learns from lanes and ownership which batches run, and when their leases run out."""

    #: Whether a batch that runs longer than ``max_run`` loses its lease.
    ends_overdue: bool
    #: Whether an ending process may release a shard whose batch still runs.
    gives_up_running: bool

    def begin(self, owned: OwnedShard) -> None:
        """Record that a batch of the shard is about to run."""

    def end(self, owned: OwnedShard) -> None:
        """Record that the batch has ended."""

    def renewed(self) -> None:
        """Record that leases were renewed."""

    def close(self) -> None:
        """Free resources after the last batch."""


class Cooperative:
    """A batch that outlives its lease goes on; its settle is refused when another node owns the shard."""

    ends_overdue = False
    gives_up_running = True

    def begin(self, owned: OwnedShard) -> None: ...

    def end(self, owned: OwnedShard) -> None: ...

    def renewed(self) -> None: ...

    def close(self) -> None: ...


class Timer(Protocol):
    """Ends the process at a given time."""

    def set(self, at: float | None) -> None:
        """End the process at this monotonic time (s); None cancels."""


class Strict:
    """Sets a timer that ends the process at the earliest lease deadline of a running batch."""

    ends_overdue = True
    gives_up_running = False

    def __init__(self, timer: Timer, last_line: LastLine | None = None) -> None:
        """``last_line`` logs the reason shortly before the process ends."""
        self._timer = timer
        self._last_line = last_line
        self._lock = threading.Lock()
        self._running: dict[ShardRef, OwnedShard] = {}

    def begin(self, owned: OwnedShard) -> None:
        with self._lock:
            self._running[owned.shard] = owned
            self._set()

    def end(self, owned: OwnedShard) -> None:
        with self._lock:
            self._running.pop(owned.shard, None)
            self._set()

    def renewed(self) -> None:
        with self._lock:
            if self._running:
                self._set()

    def close(self) -> None:
        if self._last_line is not None:
            self._last_line.close()

    def _set(self) -> None:
        first = min(self._running.values(), key=attrgetter("deadline"), default=None)
        self._timer.set(None if first is None else first.deadline)
        if self._last_line is not None:
            self._last_line.expect(first)
