"""One thread that listens to pushes and wakes the lane of the shard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import QueueSpec, ShardRef

from .outage import Outage, pauses
from .ports import Host, Store, Subscription

#: How long one look at a silent subscription takes at most, in s; closing it ends most of them at once.
LISTEN = 1.0


class Waker:
    """Calls ``pushed(shard, perform_in)`` (None for a shard that was released), and ``connected()`` when
    announcements may have been missed.
    """

    def __init__(
        self,
        store: Store,
        queues: Sequence[QueueSpec],
        host: Host,
        outage: Outage,
        *,
        pushed: Callable[[ShardRef, float | None], None],
        connected: Callable[[], None],
    ) -> None:
        self._store = store
        self._queues = queues
        self._host = host
        self._outage = outage
        self._pushed = pushed
        self._connected = connected
        self._stop = threading.Event()
        #: Set by all that ends a wait: another list of queues, and the end.
        self._changed = threading.Event()
        self._pauses = pauses()
        self._subscription: Subscription | None = None
        self._thread = threading.Thread(target=self._main, name="lowkiq-waker", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._stop.set()
        self._interrupt()

    def listen_to(self, queues: Sequence[QueueSpec]) -> None:
        """Listen to these queues from now on."""
        self._queues = queues
        self._interrupt()

    def _interrupt(self) -> None:
        self._changed.set()
        # Read once: the thread may be done with it at any moment.
        subscription = self._subscription
        if subscription is not None:
            subscription.close()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def _main(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._listen()
                except StoreError as error:
                    if self._changed.is_set():
                        continue
                    self._outage.begins(error)
                    self._stop.wait(next(self._pauses))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave a worker deaf
            self._host.last_words(error)
            self._host.stop(70, f"lowkiq-waker: {error!r}")

    def _listen(self) -> None:
        self._changed.clear()
        # After that, so that nothing is missed that came before.
        queues = self._queues
        if self._stop.is_set():
            return
        if not queues:
            self._outage.ends()
            self._changed.wait()
            return
        self._outage.asks()
        subscription = self._subscription = self._store.subscribe(queues)
        try:
            self._pauses = pauses()
            self._outage.ends()
            self._connected()
            while not self._changed.is_set():
                self._outage.asks()
                announced = subscription.wait_pushed(LISTEN)
                if announced is not None:
                    self._pushed(*announced)
        finally:
            self._subscription = None
            subscription.close()
