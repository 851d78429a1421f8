"""The stores of event loops: each loop has its own connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from celery_lowkiq.store.loop_store import LoopStore


class LoopStores:
    """The stores of an app by event loop. Safe to share between threads."""

    def __init__(self, open_store: Callable[[], LoopStore]) -> None:
        self._open = open_store
        self._lock = threading.Lock()
        self._stores: dict[asyncio.AbstractEventLoop, LoopStore] = {}

    async def current(self) -> LoopStore:
        """Return the store of the running loop; made at its first use."""
        loop = asyncio.get_running_loop()
        store = self._stores.get(loop)
        if store is None:
            store = self._open()
            with self._lock:
                # A loop that is closed without shutting down its generators leaves its store here.
                for closed in [each for each in list(self._stores) if each.is_closed()]:
                    del self._stores[closed]
                self._stores[loop] = store
            await store.close_with_loop(partial(self._stores.pop, loop, None))
        return store
