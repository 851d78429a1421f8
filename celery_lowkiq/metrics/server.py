"""HTTP server that exports a registry to Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server


@dataclass(frozen=True)
class Server:
    """A running HTTP server with its threads."""

    server: WSGIServer
    thread: Thread

    @property
    def url(self) -> str:
        host, port = self.server.server_address[:2]
        shown = host.decode() if isinstance(host, bytes) else host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/metrics"

    def close(self) -> None:
        """Stop the server."""
        self.server.shutdown()
        self.server.server_close()


def listen(registry: CollectorRegistry, host: str, port: int) -> Server:
    """Serve the registry; port 0 chooses a free one. Raises OSError."""
    return Server(*start_http_server(port, host, registry))
