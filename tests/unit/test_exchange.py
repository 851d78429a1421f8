"""Tests of ``store/exchange.py``."""

from __future__ import annotations

import itertools
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest
from redis import exceptions
from redis._parsers import _RESP2Parser
from redis.connection import DefaultParser

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store import connect as connecting
from celery_lowkiq.store import exchange
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.redis_store import RedisStore

MAX_BYTES = 256 * 1024
#: What the server sends at most, so that a test without limits ends, too.
ENOUGH = 16 * 1024 * 1024
PART = b"x" * 65536
REPLIES = {
    "text": (b"$5000000000\r\n", PART),
    "numbers": (b"*10000000\r\n", b":1\r\n" * 16_384),
    "texts": (b"*10000000\r\n", b"$4\r\nabcd\r\n" * 6_000),
    "error": (b"-SHARDS ", PART),
}


class Endless:
    """A server whose replies have a beginning, and then one part after the other."""

    def __init__(self, beginning: bytes, part: bytes, pause: float = 0.0) -> None:
        self.sent = 0
        endless = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                while data := self.request.recv(1 << 16):
                    if b"CLIENT" in data:
                        self.request.sendall(b"+OK\r\n" * data.count(b"SETINFO"))
                        continue
                    self.request.sendall(beginning)
                    for _ in range(ENOUGH // len(part)):
                        self.request.sendall(part)
                        endless.sent += len(part)
                        time.sleep(pause)
                    return

            def finish(self) -> None:
                self.request.close()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def __enter__(self) -> Endless:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.socket.close()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(exchange, "MAX_BYTES", MAX_BYTES, raising=False)
    monkeypatch.setattr(connecting, "RETRIES", 0)


@pytest.mark.parametrize("parser", [_RESP2Parser, DefaultParser], ids=["python", "installed"])
@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_is_read_up_to_a_size(reply, parser):
    """A text of 5 GB was read whole."""
    with Endless(*REPLIES[reply]) as server:
        options = {"host": "127.0.0.1", "port": server.port, "socket_timeout": 30, "parser_class": parser}
        client = connect(options, pool_size=1, pool_timeout=1)
        with pytest.raises(exceptions.InvalidResponse, match=f"more than {MAX_BYTES} bytes"):
            client.get("x")
        # And what the sockets hold.
        assert server.sent < ENOUGH
        with pytest.raises(StoreUnavailable, match=f"more than {MAX_BYTES} bytes"):
            RedisStore(client).next_due([ShardRef("q", 0)])
        client.close()


@pytest.mark.parametrize("parser", [_RESP2Parser, DefaultParser], ids=["python", "installed"])
def test_a_reply_that_comes_byte_by_byte_ends_in_time(parser, monkeypatch):
    """Each byte began the timeout of the socket anew."""
    monkeypatch.setattr(exchange, "MAX_SECONDS", 0.1, raising=False)
    with Endless(b"$1000\r\n", b"x", pause=0.01) as server:
        options = {"host": "127.0.0.1", "port": server.port, "socket_timeout": 30, "parser_class": parser}
        client = connect(options, pool_size=1, pool_timeout=1)
        with pytest.raises(exceptions.TimeoutError, match="a reply did not end within"):
            client.get("x")
        client.close()


def test_replies_one_after_the_other_have_a_limit_each():
    """Not all of a connection together."""
    size = MAX_BYTES // 3
    bodies = itertools.repeat(b"$%d\r\n%b\r\n" % (size, b"x" * size))

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while data := self.request.recv(1 << 16):
                self.request.sendall(b"+OK\r\n" * data.count(b"SETINFO"))
                for _ in range(data.count(b"GET\r\n")):
                    self.request.sendall(next(bodies))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        port = server.server_address[1]
        client = connect(
            {"host": "127.0.0.1", "port": port, "socket_timeout": 30}, pool_size=1, pool_timeout=1
        )
        for _ in range(3):
            with client.pipeline(transaction=False) as commands:
                for _ in range(10):
                    commands.get("x")
                assert [len(reply) for reply in commands.execute()] == [size] * 10
        client.close()
        server.shutdown()
