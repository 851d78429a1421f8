"""What happens to a batch that runs past its lease: it goes on, or ends with its process."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import Protocol

from celery_lowkiq.rules.models import ShardRef

from .last_line import LastLine
from .owned_shard import Held


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

    def close(self) -> None:
        """Nothing runs any more, and nothing will."""


class Cooperative:
    """A batch that runs past its lease goes on; its settle is refused when another node has the shard."""

    ends_overdue = False
    gives_up_running = True

    def begin(self, held: Held) -> None: ...

    def end(self, held: Held) -> None: ...

    def renewed(self) -> None: ...

    def close(self) -> None: ...


class Timer(Protocol):
    """What ends the process."""

    def set(self, at: float | None) -> None:
        """End it at this monotonic time (s); never, for None."""


class Strict:
    """Keeps a timer that ends the process at the earliest deadline among the shards of running batches."""

    ends_overdue = True
    gives_up_running = False

    def __init__(self, timer: Timer, last_line: LastLine | None = None) -> None:
        """``last_line`` says why the process ends, shortly before it does."""
        self._timer = timer
        self._last_line = last_line
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

    def close(self) -> None:
        if self._last_line is not None:
            self._last_line.close()

    def _set(self) -> None:
        first = min(self._running.values(), key=attrgetter("deadline"), default=None)
        self._timer.set(None if first is None else first.deadline)
        if self._last_line is not None:
            self._last_line.expect(first)
