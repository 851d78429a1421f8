"""Changes in many steps: their progress, their cancellation between two steps, and their ids by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from celery_lowkiq.rules.models import QueueSpec, ShardRef

from .records import id_bytes
from .script import Value

#: Called after each step with the number of jobs (or ids) done so far. It may raise Stop.
Progress = Callable[[int], None]


class Stop(Exception):
    """Raised to prevent further steps; completed steps stay. Ignored once the last step has begun."""


class Tally:
    """Counts the jobs of completed steps and reports the progress."""

    def __init__(self, progress: Progress | None) -> None:
        self.count: int = 0
        self._progress = progress
        self._stop: Stop | None = None

    def begin(self) -> None:
        """Call before each step. Raises Stop after a request to stop."""
        if self._stop is not None:
            raise self._stop

    def add(self, count: int) -> None:
        """Call after each step, also when it did only a part of a job."""
        self.count += count
        if self._progress:
            try:
                self._progress(self.count)
            except Stop as stop:
                self._stop = stop


def by_shard(queue: QueueSpec, ids: Iterable[str]) -> dict[ShardRef, list[Value]]:
    """Group ids by their shards."""
    parts: dict[ShardRef, list[Value]] = {}
    for job_id in ids:
        shard = queue.shard_of(job_id)
        parts.setdefault(shard, []).append(id_bytes(job_id))
    return parts
