"""Limits of one reply: its bytes, and its time from the first byte to the last.

A socket's own timeout ends with each byte that arrives. So a server or proxy that lies could make a client
read for ever, or until the memory is full.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from redis import exceptions

#: Maximum bytes of a reply. The longest ones of our scripts have a few MiB: each has a limit of its own.
MAX_BYTES = 64 * 1024 * 1024
#: Maximum s from the first byte of a reply to its last one.
MAX_SECONDS = 30.0


class Meter:
    """Counts what arrives of one reply after its first part. Bytes of the next one, which arrive with its
    end, count for it.
    """

    def __init__(self) -> None:
        #: Set by the reader of a reply: nothing of it has arrived, but for what came with the one before.
        self.is_new = True
        self._left, self._until = MAX_BYTES, 0.0

    def count(self, size: int) -> None:
        """Count bytes that have arrived. Raises InvalidResponse or TimeoutError beyond a limit."""
        if self.is_new:
            # Most replies are one part, of which no time is read.
            self.is_new = False
            self._left, self._until = MAX_BYTES - size, 0.0
            return
        now = time.monotonic()
        if not self._until:
            self._until = now + MAX_SECONDS
        elif now > self._until:
            raise exceptions.TimeoutError(f"a reply did not end within {MAX_SECONDS:.0f} s")
        self._left -= size
        if self._left < 0:
            raise exceptions.InvalidResponse(f"a reply has more than {MAX_BYTES} bytes")


class MeteredSocket:
    """A socket whose received bytes are counted."""

    def __init__(self, socket: Any, meter: Meter) -> None:
        self._socket, self._receive, self._count = socket, socket.recv_into, meter.count

    def recv_into(self, buffer: Any) -> int:
        """Receive bytes, as hiredis's parser does."""
        size: int = self._receive(buffer)
        self._count(size)
        return size

    def recv(self, *args: Any) -> bytes:
        """Receive bytes, as redis-py's own parser does."""
        data: bytes = self._socket.recv(*args)
        self._count(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _Limited:
    """A parser of redis-py that reads no reply beyond the limits."""

    _read_response_of_parser: Any
    _sock: Any
    _buffer: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        self._meter = Meter()
        super().__init__(*args, **options)

    def on_connect(self, connection: Any, *args: Any, **options: Any) -> None:
        """Count what comes over a new connection."""
        parser: Any = super()
        parser.on_connect(connection, *args, **options)
        self._sock = MeteredSocket(self._sock, self._meter)
        if hasattr(self._buffer, "_sock"):
            self._buffer._sock = self._sock

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return a reply. Raises InvalidResponse or TimeoutError."""
        self._meter.is_new = True
        return self._read_response_of_parser(*args, **options)


@cache
def limited(parser: Any) -> Any:
    """Return the class of a parser of redis-py whose replies are limited."""
    # Not by super(), which costs as much as the rest.
    own = {"_read_response_of_parser": parser.read_response}
    return type(f"Limited{parser.__name__}", (_Limited, parser), own)
