"""Changes in many steps: their progress, their cancellation between two steps, and their ids by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from celery_lowkiq.rules.errors import ShardsUnreachable, StoreError, StoreFull, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.records import id_bytes
from celery_lowkiq.store.script import Value

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


class ShardTally(Tally):
    """Counts steps in shards. The other shards go on when the master of one is unreachable."""

    def __init__(self, client: Client, progress: Progress | None) -> None:
        super().__init__(progress)
        self._client = client
        #: Shards that were left out, with the addresses of their masters.
        self.left_out: dict[ShardRef, str] = {}

    @contextmanager
    def of(self, shard: ShardRef) -> Iterator[None]:
        """Leave a shard out from where its master is unreachable. Raises StoreError otherwise, and on one
        server.
        """
        try:
            yield
        except StoreUnavailable as error:
            self._client.check_reachable([error])
            self.leave_out(shard, error)

    def leave_out(self, shard: ShardRef, error: StoreError) -> None:
        """Leave a shard out whose master is unreachable. Raises the StoreFull of one that is full."""
        if isinstance(error, StoreFull):
            raise error
        self.left_out[shard] = self._client.servers.master_of(shard)

    def add_part(self, act: Callable[[], int]) -> None:
        """Do a part of the change, whose progress is its own, and add what it returns."""
        try:
            count = act()
        except ShardsUnreachable as error:
            count = error.count
            self.left_out |= error.shards
        self.add(count)

    def total(self) -> int:
        """Return the count. Raises ShardsUnreachable when shards were left out."""
        if self.left_out:
            raise ShardsUnreachable(self.count, self.left_out)
        return self.count


def by_shard(queue: QueueSpec, ids: Iterable[str]) -> dict[ShardRef, list[Value]]:
    parts: dict[ShardRef, list[Value]] = {}
    for job_id in ids:
        shard = queue.shard_of(job_id)
        parts.setdefault(shard, []).append(id_bytes(job_id))
    return parts
