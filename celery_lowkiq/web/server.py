"""The HTTP protocol of ``lowkiq web``: bounds connections that have not sent a whole header.

uvicorn waits for headers forever. Here a connection without a request is closed after HEADER_SECONDS. An
address has at most MOST_OF_ADDRESS of them, and all together MOST: a further one closes the oldest of the
address that has the most. Nobody who sends a request at once is refused, also behind the same proxy.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from celery_lowkiq.web.auth import subscriber

#: Seconds in which a request must have sent its header.
HEADER_SECONDS = 10.0
MOST_OF_ADDRESS, MOST = 50, 1000


class WaitingConnections:
    """The connections of a server that have not sent a whole header, by address, the oldest first."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[HttpProtocol, None]] = {}

    def add(self, connection: HttpProtocol) -> None:
        """Add a connection, and close another one if there are too many."""
        own = self._by_address.setdefault(connection.address, {})
        own[connection] = None
        if len(own) > MOST_OF_ADDRESS:
            self._close_oldest(own)
        elif sum(map(len, self._by_address.values())) > MOST:
            self._close_oldest(max(self._by_address.values(), key=len))

    def remove(self, connection: HttpProtocol) -> None:
        """Forget a connection that has sent a header, or has ended."""
        own = self._by_address.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._by_address.pop(connection.address, None)

    def _close_oldest(self, connections: dict[HttpProtocol, None]) -> None:
        oldest = next(iter(connections))
        self.remove(oldest)
        oldest.abort()


class HttpProtocol(H11Protocol):
    """One connection. h11 bounds the size of its header, which httptools does not."""

    address: str = "?"
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a header."""
        super().connection_made(transport)
        self.address = subscriber(self.client[0]) if self.client else "?"
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read data; wait on, or for the header of the next request, if there is none."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not None and (self.cycle is not before or not self.cycle.response_complete):
            self._end_wait()
        elif not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._end_wait()
        super().connection_lost(exc)

    def abort(self) -> None:
        self._end_wait()
        if not self.transport.is_closing():
            self.transport.abort()

    @property
    def _waiting(self) -> WaitingConnections:
        state: Any = self.server_state
        if not hasattr(state, "lowkiq_waiting"):
            state.lowkiq_waiting = WaitingConnections()
        found: WaitingConnections = state.lowkiq_waiting
        return found

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.abort)
            self._waiting.add(self)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.remove(self)
