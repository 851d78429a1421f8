"""Reads information about the Redis server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.health_checks import Server
from celery_lowkiq.rules.server_info import ServerInfo, server_info

from .client import Client
from .replies import reads_replies


@reads_replies
def read_server(client: Client) -> ServerInfo:
    """Return the server's information with its address, without user and password. Raises StoreError."""
    (info,) = client.commands([("INFO",)])
    return replace(server_info(info), address=client.address())


@reads_replies
def read_memory_limit(client: Client) -> Server:
    """Return the memory limit and eviction policy, by INFO since managed servers forbid CONFIG.

    Raises StoreUnavailable.
    """
    info = reply_if_permitted(client, "INFO", "memory")
    return Server(policy=info.get("maxmemory_policy"), maxmemory=int(info.get("maxmemory", 0)))


def reply_if_permitted(client: Client, *command: str) -> dict[str, Any]:
    """Return the reply of a command; empty when it is forbidden. Raises StoreUnavailable."""
    try:
        (reply,) = client.commands([command])
    except StoreUnavailable:
        raise
    except StoreError:
        return {}
    return {_text(name): _text(value) for name, value in reply.items()}


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
