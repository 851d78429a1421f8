"""Where Prometheus reads: one HTTP server of a registry."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server


@dataclass(frozen=True)
class Server:
    """Answers in threads of its own until it is closed."""

    server: WSGIServer
    thread: Thread

    @property
    def url(self) -> str:
        host, port = self.server.server_address[:2]
        shown = host.decode() if isinstance(host, bytes) else host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/metrics"

    def close(self) -> None:
        """Stop to listen."""
        self.server.shutdown()
        self.server.server_close()


def listen(registry: CollectorRegistry, host: str, port: int) -> Server:
    """Serve the registry; port 0 takes a free one. Raises OSError."""
    return Server(*start_http_server(port, host, registry))
