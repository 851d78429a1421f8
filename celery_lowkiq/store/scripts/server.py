"""Reads information about the Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.server_info import ServerInfo, server_info
from celery_lowkiq.rules.topology import Kind

from .client import Client
from .keys import queue_key, reports_key, shard_keys
from .replies import reads_replies

#: Maximum number of keys that a check of the URL reads.
MOST_KEYS = 1000


@reads_replies
def read_server(client: Client) -> ServerInfo:
    """Return the server's information with its address, without user and password. Raises StoreError."""
    # On a cluster, a master answers INFO also while it refuses all keys.
    of_key = [("ZREVRANGE", reports_key(), 0, 0)] if client.kind() is Kind.CLUSTER else []
    *_, info = client.commands([*of_key, ("INFO",)])
    address, place = client.address(), client.behind_sentinels()
    return replace(server_info(info), address=f"{address} ({place})" if place else address)


def check_url(client: Client, queues: Sequence[QueueSpec]) -> None:
    """Raise ClusterNode when the server is a node of a cluster without all slots of the queues, and
    SentinelAddress when it stores nothing. Other errors pass.
    """
    keys = [queue_key(queue.name) for queue in queues]
    keys += [shard_keys(shard)["meta"] for queue in queues for shard in queue.shard_refs()]
    for server in client.masters():
        for reply in server.ask([("HGET", key, "shards") for key in keys[:MOST_KEYS]]):
            if isinstance(reply, ConfigurationError):
                raise reply
