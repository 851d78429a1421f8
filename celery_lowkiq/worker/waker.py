"""The thread that listens to announcements of pushes, and wakes the lane of the shard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from celery_lowkiq.rules.errors import StoreError, SubscriptionLost
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.worker.context import WorkerContext
from celery_lowkiq.worker.outage import backoff
from celery_lowkiq.worker.ports import Subscription

#: Maximum seconds of one wait for a message. Closing the subscription ends most waits at once.
LISTEN = 1.0


class Waker:
    """Calls ``announced(shard, perform_in)``, with None for a released shard, and ``connected()`` whenever
    announcements may have been missed.
    """

    def __init__(
        self,
        ctx: WorkerContext,
        queues: Sequence[QueueSpec],
        *,
        announced: Callable[[ShardRef, float | None], None],
        connected: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._queues = queues
        self._announced = announced
        self._connected = connected
        self._stop = threading.Event()
        #: Set to end a wait: the queues have changed, or the waker stops.
        self._changed = threading.Event()
        self._backoff = backoff()
        self._subscription: Subscription | None = None
        self.thread: threading.Thread = ctx.thread("lowkiq-waker", self._main)

    def stop(self) -> None:
        self._stop.set()
        self._interrupt()

    def listen_to(self, queues: Sequence[QueueSpec]) -> None:
        """Listen to these queues from now on."""
        self._queues = queues
        self._interrupt()

    def _interrupt(self) -> None:
        self._changed.set()
        # Read once: the thread may reset it at any moment.
        subscription = self._subscription
        if subscription is not None:
            subscription.close()

    def _main(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except StoreError as error:
                if self._changed.is_set():
                    continue
                if not isinstance(error, SubscriptionLost):
                    self._ctx.outage.failed(error)
                self._stop.wait(next(self._backoff))

    def _listen(self) -> None:
        self._changed.clear()
        # Read after the clear, so that no change is missed.
        queues = self._queues
        if self._stop.is_set():
            return
        if not queues:
            self._ctx.outage.recovered()
            self._changed.wait()
            return
        self._ctx.outage.request_started()
        subscription = self._subscription = self._ctx.store.subscribe(queues)
        try:
            self._backoff = backoff()
            self._ctx.outage.recovered()
            self._connected()
            while not self._changed.is_set():
                self._ctx.outage.request_started()
                announcement = subscription.wait_pushed(LISTEN)
                if announcement is not None:
                    self._announced(*announcement)
        finally:
            self._subscription = None
            subscription.close()
