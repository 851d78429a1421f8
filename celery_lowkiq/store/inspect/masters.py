"""Reads what the masters report about themselves, and which shards each of them stores."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_lowkiq.rules.errors import LoginRefused, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.server_checks import Server
from celery_lowkiq.rules.topology import Master, Topology
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.leases.heartbeats import seconds
from celery_lowkiq.store.leases.master_checks import if_permitted, refused_commands
from celery_lowkiq.store.scripts.client import Asked, Client
from celery_lowkiq.store.scripts.replies import reads_replies

#: Before Redis 7, CONFIG GET takes one name only.
SETTINGS = ("save", "appendfsync", "min-replicas-to-write")
CLUSTER_SETTINGS = ("cluster-require-full-coverage", "cluster-node-timeout")


@reads_replies
def read_topology(client: Client, queues: Sequence[QueueSpec], lease_seconds: float) -> Topology:
    """Return the masters with their shards, by the stored numbers of shards.

    What the connection's user may not read stays unknown. Raises StoreError when no master responds.
    """
    asked = client.masters()
    stored = Registry(client.reader()).as_known(queues)
    shards: dict[str | None, Counter[str]] = defaultdict(Counter)
    for queue in stored:
        for shard in queue.shard_refs():
            shards[client.master_of(shard)][queue.name] += 1
    masters = [_master(each, shards[each.address]) for each in asked]
    if all(master.away is not None for master in masters):
        raise StoreUnavailable(masters[0].away if masters else "Redis is not available: no master has a slot")
    all_shards = [shard for queue in stored for shard in queue.shard_refs()]
    refused, refusing = refused_commands(client, all_shards)
    place = client.behind_sentinels()
    found = tuple(
        replace(
            one,
            refused=refused.get(one.address, {}),
            refuses=None if one.away else refusing.get(one.address),
            place=place,
        )
        for one in masters
    )
    return Topology(client.kind(), found, lease_seconds, dict(shards[None]))


def _master(asked: Asked, shards: Mapping[str, int]) -> Master:
    names = SETTINGS if asked.slots is None else SETTINGS + CLUSTER_SETTINGS
    info, *settings = asked.ask([("INFO",), *(("CONFIG GET", name) for name in names)])
    before = time.time()
    (now,) = asked.ask([("TIME",)])
    after = time.time()
    if away := next((e for e in (info, now) if isinstance(e, StoreUnavailable)), None):
        return Master(
            asked.address,
            slots=asked.slots,
            shards=shards,
            away=str(away),
            login_refused=isinstance(away, LoginRefused),
        )
    config = {name: value for reply in settings for name, value in if_permitted(reply).items()}
    server = _server(if_permitted(info), config)
    if not isinstance(now, StoreError):
        ahead = seconds(now) - (before + after) / 2
        server = replace(server, ahead=ahead, give_or_take=(after - before) / 2)
    return Master(asked.address, server, asked.slots, shards)


def _server(info: Mapping[str, Any], config: Mapping[str, Any]) -> Server:
    timeout, coverage = config.get("cluster-node-timeout"), config.get("cluster-require-full-coverage")
    least = config.get("min-replicas-to-write")
    return Server(
        name="Valkey" if info.get("server_name") == "valkey" else "Redis",
        version=str(info.get("valkey_version") or info.get("redis_version") or ""),
        policy=info.get("maxmemory_policy"),
        maxmemory=int(info.get("maxmemory", 0)),
        aof=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        appendfsync=config.get("appendfsync"),
        save=config.get("save"),
        written=_written(info),
        used_memory=int(info.get("used_memory", 0)),
        replicas=int(info["connected_slaves"]) if "connected_slaves" in info else None,
        # It is left out while the setting is 0.
        min_replicas="min_slaves_good_slaves" in info if info else None,
        min_replicas_to_write=int(least) if least else None,
        good_replicas=int(info["min_slaves_good_slaves"]) if "min_slaves_good_slaves" in info else None,
        full_coverage=coverage == "yes" if coverage else None,
        node_timeout=int(timeout) / 1000 if timeout else None,
    )


def _written(info: Mapping[str, Any]) -> bool:
    of_aof = info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok"
    return not of_aof and info.get("rdb_last_bgsave_status", "ok") == "ok"
