"""The example's Django project behind real servers, and browsers of a user."""

from __future__ import annotations

import http.client
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import uvicorn

from tests.waiting import eventually


class _ThreadingServer(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each request, or some for all."""

    daemon_threads = True
    request_queue_size = 64
    pool: ThreadPoolExecutor | None = None

    def process_request(self, *request: Any) -> None:
        if self.pool is None:
            super().process_request(*request)
        else:
            self.pool.submit(self.process_request_thread, *request)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def wsgi_server(application: Any, threads: int | None = None) -> Iterator[int]:
    """Its port. ``threads``: None for one for each request."""
    server = _ThreadingServer(("127.0.0.1", 0), _Quiet)
    server.pool = ThreadPoolExecutor(threads) if threads is not None else None
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


@contextmanager
def asgi_server(application: Any) -> Iterator[int]:
    """Its port."""
    config = uvicorn.Config(application, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


def load(port: int, path: str, session: str) -> tuple[int, str]:
    """Status and text of a page, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Cookie": f"sessionid={session}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def load_often(port: int, path: str, session: str, threads: int, times: int) -> list[int]:
    """The statuses of ``times`` loads by each of so many threads at once."""
    statuses: list[int] = []

    def visit() -> None:
        statuses.extend(load(port, path, session)[0] for _ in range(times))

    visitors = [threading.Thread(target=visit) for _ in range(threads)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join(120)
    return statuses
