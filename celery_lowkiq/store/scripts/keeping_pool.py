"""A connection pool that keeps connections ready between two exchanges, and lets no thread starve.

To take a connection from redis-py's pool costs as much as the exchange of a script. After a second redis-py
looks at a kept connection again: whether it is closed, and still one of the master.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import redis
from redis import exceptions

#: How long a connection is used before redis-py looks at it again.
KEPT_SECONDS = 1.0
#: Redis-py before 5.3 wants the name of a command for a connection.
NAME = ("EVALSHA",) if tuple(map(int, redis.__version__.split(".")[:2])) < (5, 3) else ()


class NoFreeConnection(exceptions.ConnectionError):
    """Other threads had all connections of a pool for as long as a caller waits; Redis may be reachable."""

    def __init__(self) -> None:
        super().__init__("No connection available.")


class Kept(NamedTuple):
    """A connection of the pool, and until when it may be used (monotonic s)."""

    connection: Any
    until: float


class KeepingPool(redis.BlockingConnectionPool):
    """A pool that keeps connections between exchanges, but none while a thread waits for one.

    Safe to share between threads; a forked process uses no connection of its parent's.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        #: Called when a thread gets a connection that it may have waited for. What it raises, the thread gets
        #: instead.
        self.check: Callable[[], None] = lambda: None
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """Begin without connections. redis-py calls this once in each process that uses the pool."""
        self._idle: deque[Kept] = deque()
        #: One place for each connection that a thread has or that is kept.
        self._places = threading.Semaphore(self.max_connections)
        #: Held by the thread that waits for a place: one that gives a place back gets none before it.
        self._turn = threading.Lock()
        super().reset()  # type: ignore[no-untyped-call]

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Take a connection for one command, after all kept ones were given back. Raises RedisError."""
        self._checkpid()
        self._take_place()
        try:
            self.check()
        except BaseException:
            self._places.release()
            raise
        return super().get_connection(*args, **options)  # type: ignore[no-untyped-call]

    def _take_place(self) -> None:
        began = time.monotonic()
        # The lock takes -1 for no limit.
        if not self._turn.acquire(timeout=-1 if self.timeout is None else self.timeout):
            raise NoFreeConnection
        try:
            # Only now: a thread that keeps a connection from here on sees that this one waits.
            self._release_idle()
            left = None if self.timeout is None else max(0.0, began + self.timeout - time.monotonic())
            if not self._places.acquire(timeout=left):
                raise NoFreeConnection
        finally:
            self._turn.release()

    def release(self, connection: Any) -> None:
        """Give a connection back."""
        super().release(connection)  # type: ignore[no-untyped-call]
        self._places.release()

    def take_kept(self) -> Kept | None:
        """Take a kept connection; None: there is none."""
        if self.pid != os.getpid():
            return None
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:
                break
            if time.monotonic() < kept.until:
                return kept
            self.release(kept.connection)
        return None

    def take_new(self) -> Kept:
        """Take a connection that may be kept afterwards. Raises RedisError."""
        return Kept(self.get_connection(*NAME), time.monotonic() + KEPT_SECONDS)

    def keep(self, kept: Kept) -> None:
        """Keep a connection after an exchange."""
        self._idle.append(kept)
        if self._turn.locked():
            self._release_idle()

    def close_idle(self) -> None:
        """Close the connections that no thread uses."""
        self._release_idle()
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self.pool.get_nowait())
        for connection in idle:
            if connection is not None:
                connection.disconnect()
            self.pool.put_nowait(connection)

    def _release_idle(self) -> None:
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:
                break
            self.release(kept.connection)
