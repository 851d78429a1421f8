"""Reads information about the Redis server."""

from __future__ import annotations

from dataclasses import replace

from celery_lowkiq.rules.server_info import ServerInfo, server_info
from celery_lowkiq.rules.topology import Kind

from .client import Client
from .keys import reports_key
from .replies import reads_replies


@reads_replies
def read_server(client: Client) -> ServerInfo:
    """Return the server's information with its address, without user and password. Raises StoreError."""
    # On a cluster, a master answers INFO also while it refuses all keys.
    of_key = [("ZREVRANGE", reports_key(), 0, 0)] if client.kind() is Kind.CLUSTER else []
    *_, info = client.commands([*of_key, ("INFO",)])
    address, place = client.address(), client.behind_sentinels()
    return replace(server_info(info), address=f"{address} ({place})" if place else address)
