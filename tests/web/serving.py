"""The dashboard of the showcase, with a real worker behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
import uvicorn
from celery import Celery

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.web import make_app
from tests.waiting import eventually
from tests.web import showcase
from tests.worker.nodes import Worker, worker


@contextmanager
def served(app: Celery, **options: Any) -> Iterator[str]:
    """The address of the app's dashboard, on this machine."""
    server = uvicorn.Server(uvicorn.Config(make_app(app, **options), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://localhost:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def shop(server: EmbeddedServer, folder: Path) -> Iterator[Celery]:
    """The showcase's app on an empty server, filled, with a worker that is at it."""
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.flushall()
        app = showcase.make_app(server.url)
        showcase.fill(app)
        showcase.remember(app, client)
        node = _worker(app, server, folder)
        try:
            orders, invoices = (app.tasks[name].ordered_queue for name in ("sync_order", "send_invoice"))
            eventually(lambda: invoices.stats().morgue_length and _has_waited(orders), 90)
            eventually(lambda: any(shard.running for shard in orders.shards()), 60)
            yield app
        finally:
            node.teardown()
            app.close()


def _has_waited(orders: OrderedQueue) -> bool:
    """Whether the failing order has its quick tries behind it."""
    waiting = orders.job(showcase.FAILING).waiting
    return waiting is not None and waiting.retry_count >= showcase.LOOKED_AT


def _worker(app: Celery, server: EmbeddedServer, folder: Path) -> Worker:
    options = ("-n", "worker-1@shop")
    return worker(
        app, folder / "worker.log", *options, module="tests.web.showcase", lanes=6, SHOWCASE_BROKER=server.url
    )
