"""A connection pool that keeps connections ready between two exchanges, and serves threads in turn.

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
    """Other threads had all connections of a pool for as long as a caller waits: Redis is not away."""

    def __init__(self) -> None:
        super().__init__("No connection available.")


class Kept(NamedTuple):
    """A connection of the pool, and until when it may be used (monotonic s)."""

    connection: Any
    until: float


class _Line:
    """The threads that wait for one of ``places``, first come, first served."""

    def __init__(self, places: int) -> None:
        self.waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()
        self._free = places

    def join(self) -> threading.Lock:
        """Return a lock that this thread can acquire when it has a place."""
        turn = threading.Lock()
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                turn.acquire()
                self.waiting.append(turn)
        return turn

    def quit(self, turn: threading.Lock) -> bool:
        """Stop waiting. Return False if the thread got a place at the last moment."""
        with self._lock:
            if turn not in self.waiting:
                return False
            self.waiting.remove(turn)
            return True

    def leave(self) -> None:
        """Give a place to the first thread that waits."""
        with self._lock:
            if self.waiting:
                self.waiting.popleft().release()
            else:
                self._free += 1


class _OfProcess(NamedTuple):
    idle: deque[Kept]
    line: _Line


class KeepingPool(redis.BlockingConnectionPool):
    """A pool that keeps connections between exchanges, but none while a thread waits for one.

    Safe to share between threads; a forked process uses no connection of its parent's.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._by_process: dict[int, _OfProcess] = {}
        #: Called when a thread gets a connection that it may have waited for. What it raises, the thread gets
        #: instead.
        self.check: Callable[[], None] = lambda: None
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Take a connection for one command, after all kept ones were given back. Raises RedisError."""
        state = self._state()
        turn = state.line.join()
        # Only now: a thread that keeps a connection from here on sees that this one waits.
        self._release_idle(state)
        try:
            # The lock takes -1 for no limit.
            limit = -1 if self.timeout is None else self.timeout
            has_turn = turn.acquire(timeout=limit)
        except BaseException:
            # A signal's handler, as that of Celery's soft time limit, raises in the middle of the wait.
            if not state.line.quit(turn):
                state.line.leave()
            raise
        if not has_turn and state.line.quit(turn):
            raise NoFreeConnection
        try:
            self.check()
        except BaseException:
            state.line.leave()
            raise
        return super().get_connection(*args, **options)  # type: ignore[no-untyped-call]

    def release(self, connection: Any) -> None:
        """Give a connection back."""
        super().release(connection)  # type: ignore[no-untyped-call]
        self._state().line.leave()

    def take_kept(self) -> Kept | None:
        """Take a kept connection; None: there is none."""
        idle = self._state().idle
        while idle:
            try:
                kept = idle.pop()
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
        state = self._state()
        state.idle.append(kept)
        if state.line.waiting:
            self._release_idle(state)

    def close_idle(self) -> None:
        """Close the connections that no thread uses."""
        self._release_idle(self._state())
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self.pool.get_nowait())
        for connection in idle:
            if connection is not None:
                connection.disconnect()
            self.pool.put_nowait(connection)

    def _state(self) -> _OfProcess:
        pid = os.getpid()
        state = self._by_process.get(pid)
        return state or self._by_process.setdefault(pid, _OfProcess(deque(), _Line(self.max_connections)))

    def _release_idle(self, state: _OfProcess) -> None:
        while state.idle:
            try:
                kept = state.idle.pop()
            except IndexError:
                break
            self.release(kept.connection)
