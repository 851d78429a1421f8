"""Reads information about the Redis server."""

from __future__ import annotations

from dataclasses import replace

from celery_lowkiq.rules.server_info import ServerInfo, server_info

from .client import Client
from .replies import reads_replies


@reads_replies
def read_server(client: Client) -> ServerInfo:
    """Return the server's information with its address, without user and password. Raises StoreError."""
    (info,) = client.commands([("INFO",)])
    address, place = client.address(), client.behind_sentinels()
    return replace(server_info(info), address=f"{address} ({place})" if place else address)
