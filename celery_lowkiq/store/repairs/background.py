"""Repairs in a background thread, so that a long repair does not block the renewal of leases."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

from celery_lowkiq.rules.errors import LowkiqError, ShardRepairing
from celery_lowkiq.rules.loggers import store_logger as logger
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.repairs import Registered, Repaired
from celery_lowkiq.store.scripts.client import Client

from .repairs import Repairs


class BackgroundRepairs(Repairs):
    """Starts a repair and raises ShardRepairing at once; shards are repaired one after the other."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._todo: queue.SimpleQueue[tuple[ShardRef, Callable[[], object]]] = queue.SimpleQueue()
        self._in_progress: set[ShardRef] = set()

    def rewrite_meta(self, queue: QueueSpec, shard: ShardRef, registered: Registered) -> bool:
        """Return False for a shard that cannot be restored, else raise ShardRepairing."""
        if self.lost_count(queue, shard, registered) is None:
            return False
        raise self._begin(shard, partial(super().rewrite_meta, queue, shard, registered))

    def mend(self, queue: QueueSpec, shard: ShardRef) -> Repaired:
        """Start the repair. Raises ShardRepairing."""
        raise self._begin(shard, partial(super().mend, queue, shard))

    def _begin(self, shard: ShardRef, repair: Callable[[], object]) -> ShardRepairing:
        with self._lock:
            if shard not in self._in_progress:
                self._in_progress.add(shard)
                self._todo.put((shard, repair))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._main, name="lowkiq-repairs", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:
                    # The next look at a damaged shard tries again.
                    logger.error("the repair of shard %s waits: %s", shard, error)
        return ShardRepairing(shard.queue, shard.index, "some of its keys were lost and are being repaired")

    def _main(self) -> None:
        while True:
            shard, repair = self._todo.get()
            try:
                repair()
            except LowkiqError as error:
                logger.warning("the repair of shard %s was interrupted and will be retried: %s", shard, error)
            except Exception:
                logger.exception("the repair of shard %s failed", shard)
            finally:
                with self._lock:
                    self._in_progress.discard(shard)
