"""Reads information about the Redis server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.health_checks import Server
from celery_lowkiq.rules.server_info import ServerInfo, server_info

from .client import Client


def read_server(client: Client) -> ServerInfo:
    """Return the server's information with its address, without user and password. Raises StoreError."""
    (info,) = client.commands([("INFO",)])
    return replace(server_info(info), address=client.address())


def read_memory_limits(client: Client) -> list[Server]:
    """Return the memory limit and eviction policy of each master that answers, by INFO since managed servers
    forbid CONFIG. Raises StoreUnavailable when none answers.
    """
    replies = client.of_each_master(("INFO", "memory"))
    away = [reply for reply in replies if isinstance(reply, StoreUnavailable)]
    if len(away) == len(replies):
        raise away[0]
    found = [_permitted(reply) for reply in replies if reply not in away]
    return [
        Server(policy=info.get("maxmemory_policy"), maxmemory=int(info.get("maxmemory", 0))) for info in found
    ]


def reply_if_permitted(client: Client, *command: str) -> dict[str, Any]:
    """Return the reply of a command; empty when it is forbidden. Raises StoreUnavailable."""
    try:
        (reply,) = client.commands([command])
    except StoreUnavailable:
        raise
    except StoreError as error:
        reply = error
    return _permitted(reply)


def _permitted(reply: Any) -> dict[str, Any]:
    if isinstance(reply, StoreError):
        return {}
    return {_text(name): _text(value) for name, value in reply.items()}


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
