"""A TCP proxy in front of Redis: counts round trips, and makes each one take longer.

``python -m benchmarks.proxy <redis url> <ms>`` prints its port and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

CHUNK = 65536


class Proxy:
    """Listens on a free port of 127.0.0.1. Use it as a context manager."""

    def __init__(self, url: str, latency: float = 0.0) -> None:
        """``latency`` in s is added to every round trip."""
        self._url = url
        self._latency = latency
        self._lock = threading.Lock()
        self._round_trips = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        """The URL to use in place of the server's."""
        parts = urlsplit(self._url)
        user = parts.netloc.rpartition("@")[0]
        where = f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}"
        return f"redis://{where}{parts.path if parts.scheme == 'redis' else '/0'}"

    @property
    def round_trips(self) -> int:
        """How often a client asked something, so far: commands sent together count once."""
        return self._round_trips

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (self._listener, *self._sockets):
            _end(opened)
            opened.close()

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            turn = {"asked": False}
            self._start(self._requests, client, server, turn)
            self._start(self._replies, server, client, turn)

    def _connect(self) -> socket.socket:
        parts = urlsplit(self._url)
        if parts.scheme == "redis":
            server = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return server
        server = socket.socket(socket.AF_UNIX)
        server.connect(parts.path)
        return server

    def _requests(self, client: socket.socket, server: socket.socket, turn: dict[str, bool]) -> None:
        for data in _chunks(client):
            with self._lock:
                self._round_trips += not turn["asked"]
                turn["asked"] = True
            _send(server, data)
        _end(server)

    def _replies(self, server: socket.socket, client: socket.socket, turn: dict[str, bool]) -> None:
        late: queue.SimpleQueue[tuple[float, bytes] | None] = queue.SimpleQueue()
        self._start(self._deliver, client, late)
        for data in _chunks(server):
            turn["asked"] = False
            late.put((time.monotonic() + self._latency, data))
        late.put(None)

    def _deliver(self, client: socket.socket, late: queue.SimpleQueue[tuple[float, bytes] | None]) -> None:
        while (item := late.get()) is not None:
            at, data = item
            pause = at - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            _send(client, data)
        _end(client)


def _chunks(source: socket.socket) -> Any:
    try:
        while data := source.recv(CHUNK):
            yield data
    except OSError:
        return


def _send(target: socket.socket, data: bytes) -> None:
    try:
        target.sendall(data)
    except OSError:
        _end(target)


def _end(target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may have ended by itself
        target.shutdown(socket.SHUT_RDWR)


def main() -> None:
    with Proxy(sys.argv[1], float(sys.argv[2]) / 1000) as proxy:
        print(proxy.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
