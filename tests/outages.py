"""Ways in which a Redis can be unreachable, each for the time of a ``with`` block."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from celery_lowkiq.embedded import EmbeddedServer
from tests.waiting import eventually


@contextlib.contextmanager
def away(server: EmbeddedServer) -> Iterator[None]:
    """The server is killed, and started again after the block."""
    server.kill()
    try:
        yield
    finally:
        server.restart()


@contextlib.contextmanager
def read_only(server: EmbeddedServer) -> Iterator[None]:
    """The server is a replica without a master, as a former master is after a failover."""
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.replicaof("127.0.0.1", 1)
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextlib.contextmanager
def full(server: EmbeddedServer) -> Iterator[None]:
    """The server is at its maxmemory."""
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextlib.contextmanager
def busy(server: EmbeddedServer) -> Iterator[None]:
    """Another client's script does not end until it is killed."""
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.config_set("lua-time-limit", 20)
        endless = threading.Thread(target=_endless, args=(server.socket_path,), daemon=True)
        endless.start()
        try:
            eventually(lambda: _says_busy(client))
            yield
        finally:
            client.script_kill()
            endless.join(10)


def _endless(path: str) -> None:
    with redis.Redis(unix_socket_path=path) as client, contextlib.suppress(redis.ResponseError):
        client.eval("while true do end", 0)


def _says_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


class Front:
    """A server in front of another: passes everything on, or answers every command with one error.

    ``change`` may return other bytes for what the server sends at once; None closes the connection.
    """

    def __init__(self, server: EmbeddedServer, directory: Path) -> None:
        self.path = str(directory / "front.sock")
        self._behind = server.socket_path
        self._answer: bytes | None = None
        self.change: Callable[[bytes], bytes | None] = lambda data: data
        front = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                front._serve(self.request)

        self._server = socketserver.ThreadingUnixStreamServer(self.path, Connection)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.socket.close()

    @contextlib.contextmanager
    def answers(self, error: str) -> Iterator[None]:
        """For the time of the block every command is answered with this error."""
        self._answer = f"-{error}\r\n".encode()
        try:
            yield
        finally:
            self._answer = None

    def _serve(self, client: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX) as behind:
            behind.connect(self._behind)
            threading.Thread(target=self._pass_on, args=(behind, client), daemon=True).start()
            # A client waits for its replies: what comes at once is whole, and answered by one of us.
            while data := _received(client):
                if self._answer is None:
                    behind.sendall(data)
                else:
                    client.sendall(self._answer * commands_in(data))

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := _received(source)) and (told := self.change(data)) is not None:
                target.sendall(told)
            target.shutdown(socket.SHUT_RDWR)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 20)
    except OSError:
        return b""


def commands_in(data: bytes) -> int:
    """How many commands a pipeline has."""
    count = at = 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        parts, at = int(data[at + 1 : end]), end + 2
        for _ in range(parts):
            end = data.index(b"\r\n", at)
            at = end + 2 + int(data[at + 1 : end]) + 2
        count += 1
    return count
