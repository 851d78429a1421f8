"""What Redis says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.health_checks import Server
from celery_lowkiq.rules.server_info import ServerInfo, server_info
from celery_lowkiq.store.scripts.client import Client


def read_server(client: Client) -> ServerInfo:
    """With its address, but without user and password. Raises StoreError."""
    (info,) = client.commands([("INFO",)])
    known = client.redis.connection_pool.connection_kwargs
    place = known.get("path") or f"{known.get('host', '')}:{known.get('port', '')}"
    return replace(server_info(info), address=f"{place} db {known.get('db') or 0}")


def read_memory(client: Client) -> Server:
    """Its limit of memory, and what it does at that. Needs INFO only: managed servers forbid CONFIG. Raises
    StoreUnavailable.
    """
    info = if_allowed(client, "INFO", "memory")
    return Server(policy=info.get("maxmemory_policy"), maxmemory=int(info.get("maxmemory", 0)))


def if_allowed(client: Client, *command: str) -> dict[str, Any]:
    """The answer of the server; empty where the command is forbidden. Raises StoreUnavailable."""
    try:
        (found,) = client.commands([command])
    except StoreUnavailable:
        raise
    except StoreError:
        return {}
    return {_text(name): _text(value) for name, value in found.items()}


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
