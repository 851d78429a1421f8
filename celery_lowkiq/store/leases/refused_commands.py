"""Looks for commands that a service or the rights of its user forbid."""

from __future__ import annotations

from collections.abc import Sequence

from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import parse_id
from celery_lowkiq.store.scripts.script import load


def refused_commands(client: Client, shards: Sequence[ShardRef]) -> dict[str, dict[str, str]]:
    """Return the commands that scripts need and are refused, each with its error, by address of the master.

    One shard of each master is asked; a master that is away is left out. Raises StoreUnavailable when it is
    the only one.
    """
    asked = client.streams(shards)
    replies = client.calls([load("check_commands").call(shard_keys(shard)) for shard in asked])
    client.check_away(replies)
    found: dict[str, dict[str, str]] = {}
    for shard, reply in zip(asked, replies, strict=True):
        if isinstance(reply, StoreUnavailable):
            continue
        refused = {"EVALSHA": str(reply)} if isinstance(reply, StoreError) else _refused(reply)
        if refused:
            found.setdefault(client.master_of(shard) or "", {}).update(refused)
    return found


def _refused(reply: Sequence[bytes]) -> dict[str, str]:
    texts = [parse_id(text) for text in reply]
    return {f"{command} in scripts": error for command, error in zip(texts[::2], texts[1::2], strict=True)}
