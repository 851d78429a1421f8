"""Looks for masters that may evict jobs, and for commands that a service or the rights of its user forbid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_lowkiq.rules.errors import ClusterDown, ConfigurationError, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.server_checks import Server
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import parse_id
from celery_lowkiq.store.scripts.script import load


def refused_commands(
    client: Client, shards: Sequence[ShardRef]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the commands that scripts need and are refused, each with its error, by address of the master.

    One shard of each master is asked; a master that is away is left out. The second part has the errors of
    masters that refuse all scripts. Raises StoreUnavailable when there is only one and it is away;
    ConfigurationError for a wrong URL.
    """
    asked = client.streams(shards)
    replies = client.calls([load("check_commands").call(shard_keys(shard)) for shard in asked])
    client.check_away(replies)
    found: dict[str, dict[str, str]] = {}
    down: dict[str, str] = {}
    for shard, reply in zip(asked, replies, strict=True):
        if isinstance(reply, StoreUnavailable):
            if isinstance(reply, ClusterDown):
                down[client.master_of(shard) or ""] = str(reply)
            continue
        if isinstance(reply, ConfigurationError):
            # The URL is wrong: no right would help.
            raise reply
        refused = {"EVALSHA": str(reply)} if isinstance(reply, StoreError) else _refused(reply)
        if refused:
            found.setdefault(client.master_of(shard) or "", {}).update(refused)
    return found, down


def memory_limits(reply: Any) -> Server:
    """Return the memory limit and the eviction policy of the reply of INFO."""
    info = if_permitted(reply)
    return Server(policy=info.get("maxmemory_policy"), maxmemory=int(info.get("maxmemory", 0)))


def if_permitted(reply: Any) -> dict[str, Any]:
    """Return the names and values of a reply as text; none when the command is forbidden."""
    return (
        {} if isinstance(reply, StoreError) else {_text(name): _text(value) for name, value in reply.items()}
    )


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _refused(reply: Sequence[bytes]) -> dict[str, str]:
    texts = [parse_id(text) for text in reply]
    return {f"{command} in scripts": error for command, error in zip(texts[::2], texts[1::2], strict=True)}
