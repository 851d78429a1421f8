"""What Redis says of itself."""

from __future__ import annotations

from dataclasses import replace

from celery_lowkiq.rules.server import ServerInfo, server_info

from .client import Client


def read_server(client: Client) -> ServerInfo:
    """With its address, but without user and password. Raises StoreError."""
    (info,) = client.commands([("INFO",)])
    known = client.redis.connection_pool.connection_kwargs
    place = known.get("path") or f"{known.get('host', '')}:{known.get('port', '')}"
    return replace(server_info(info), address=f"{place} db {known.get('db') or 0}")
