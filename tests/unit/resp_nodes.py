"""Nodes of a cluster that answer as a test tells them, on real sockets."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Words = list[bytes]
#: The reply to a command, or None, which closes the connection.
Answer = Callable[[Words], "bytes | None"]

NOT_HERE = b"-NOSCRIPT No matching script.\r\n"


def number(value: int) -> bytes:
    return b":%d\r\n" % value


class Node:
    """Answers 1 to each script, until a test replaces ``answer``. ``heard`` has the commands in order."""

    def __init__(self, slots: Callable[[], bytes]) -> None:
        self.answer: Answer = lambda words: number(1)
        self.heard: list[Words] = []
        self.connections = 0
        self.open_now = 0
        self.in_use = 0
        self.most_in_use = 0
        self._lock = threading.Lock()
        self._slots = slots
        self._sockets: list[socket.socket] = []
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler(), False)
        self._server.daemon_threads = True
        self._server.allow_reuse_address = True
        self._server.server_bind()
        self._server.server_activate()
        self.address = ("127.0.0.1", self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def place(self) -> bytes:
        return b"%s:%d" % (self.address[0].encode(), self.address[1])

    def keys(self) -> list[str]:
        """The keys of the scripts that were heard."""
        return [words[3].decode() for words in self.heard if words[0] == b"EVALSHA"]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _handler(node) -> Any:  # noqa: N805 - the handler has a self of its own
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with node._lock:
                    node.connections += 1
                    node.open_now += 1
                    node._sockets.append(self.connection)
                with contextlib.suppress(OSError, ValueError):
                    while words := _command(self.rfile):
                        reply = node._reply(words)
                        if reply is None:
                            return
                        self.wfile.write(reply)

            def finish(self) -> None:
                super().finish()
                with node._lock:
                    node.open_now -= 1

        return Handler

    def _reply(self, words: Words) -> bytes | None:
        if words[0] in (b"CLIENT", b"HELLO", b"SELECT"):
            return b"+OK\r\n"
        if words[:2] == [b"CLUSTER", b"SLOTS"]:
            return self._slots()
        with self._lock:
            self.heard.append(words)
            answer = self.answer
        return b"+OK\r\n" if words[0] == b"ASKING" else answer(words)


def _command(file: Any) -> Words:
    head = file.readline()
    words = []
    for _ in range(int(head[1:] or 0)):
        size = int(file.readline()[1:])
        words.append(file.read(size + 2)[:-2])
    return words


class FakeCluster:
    """Nodes, each with a part of the slots; ``maps`` is what they tell."""

    def __init__(self, count: int) -> None:
        self.maps: Mapping[int, tuple[int, int]] = {}
        self.nodes = [Node(self._slots) for _ in range(count)]
        width = 16384 // count
        self.maps = {n: (n * width, 16383 if n == count - 1 else (n + 1) * width - 1) for n in range(count)}

    def of_slot(self, slot: int) -> Node:
        return next(self.nodes[n] for n, (first, last) in self.maps.items() if first <= slot <= last)

    def _slots(self) -> bytes:
        parts = []
        for n, (first, last) in self.maps.items():
            host, port = self.nodes[n].address
            parts.append(b"*3\r\n:%d\r\n:%d\r\n*2\r\n$%d\r\n%s\r\n:%d\r\n" % (
                first, last, len(host), host.encode(), port,
            ))  # fmt: skip
        return b"*%d\r\n%s" % (len(parts), b"".join(parts))


@contextlib.contextmanager
def fake_cluster(count: int = 3) -> Iterator[FakeCluster]:
    cluster = FakeCluster(count)
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            node.stop()
