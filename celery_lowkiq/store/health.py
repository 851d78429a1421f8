"""Facts for the checks of health: masters, queues, nodes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from celery_lowkiq.rules.errors import LoginRefused, StoreUnavailable
from celery_lowkiq.rules.health import QueueState, SystemState
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Damage, damages
from celery_lowkiq.rules.topology import Master, Server, Topology
from celery_lowkiq.rules.views import DAY, current
from celery_lowkiq.store.client import Asked, Client
from celery_lowkiq.store.counts import FailureReader, Queries
from celery_lowkiq.store.errors import reads_replies
from celery_lowkiq.store.keys import FORMAT, queue_key
from celery_lowkiq.store.leases import as_text, refused_commands, seconds
from celery_lowkiq.store.listings import ShardReads
from celery_lowkiq.store.node_reports import NodeReports
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.registry import Registry, parse_layout
from celery_lowkiq.store.repairs import Repairs

# Reads what the masters report about themselves, and which shards each of them stores.

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
    found, errors = asked.ask({"info": ("INFO",), **{name: ("CONFIG GET", name) for name in names}})
    before = time.time()
    clock, refused = asked.ask({"time": ("TIME",)})
    after = time.time()
    lost = errors.get("info"), refused.get("time")
    if away := next((error for error in lost if isinstance(error, StoreUnavailable)), None):
        return Master(
            asked.address,
            slots=asked.slots,
            shards=shards,
            away=str(away),
            login_refused=isinstance(away, LoginRefused),
        )
    settings = [as_text(found[name]) for name in names if name in found]
    config = {name: value for setting in settings for name, value in setting.items()}
    server = _server(as_text(found.get("info", {})), config)
    if "time" in clock:
        ahead = seconds(clock["time"]) - (before + after) / 2
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


# Reads the state for the health checks: the nodes, and how each queue is stored.

#: Dead jobs of a queue in which poison pills are counted.
SEARCHED = 1000


@reads_replies
class HealthReader:
    """Reads the state for :func:`rules.health_checks.check_health`."""

    def __init__(self, store: RedisStore) -> None:
        self._client = store.client
        self._store = store
        self._node_reports = NodeReports(store)
        self._queries = Queries(store)
        self._repairs = Repairs(store.client)

    def read(self, queues: Sequence[QueueSpec], topology: Topology) -> SystemState:
        """Return the state of nodes and queues on these masters. Raises StoreError."""
        return SystemState(
            format=str(FORMAT),
            topology=topology,
            nodes=current(self._store.nodes()),
            queues=[self._queue_if_there(queue) for queue in queues],
        )

    def _queue_if_there(self, queue: QueueSpec) -> QueueState:
        try:
            return self._queue(queue)
        except StoreUnavailable as error:
            return QueueState(queue.name, queue.shards, None, None, unread=str(error))

    def _queue(self, queue: QueueSpec) -> QueueState:
        key = queue_key(queue.name)
        command = "HMGET", key, "shards", "format", "migration_paused"
        known, now = self._client.commands([command, ("TIME",)], readable=True)
        if known is None:
            text = f"the key {key} has the wrong type. Delete it: the next call registers the queue again"
            return QueueState(queue.name, queue.shards, None, None, damages=(Damage(None, text),))
        layout = parse_layout(known[0])
        stored_format = (known[1] or b"").decode("latin-1") if known[0] or known[1] else None
        state = QueueState(queue.name, queue.shards, layout.shards if layout else None, stored_format)
        queue = queue.with_layout(layout or queue.layout)
        state = replace(state, former=queue.former_shards, migration_paused=known[2] is not None)
        conditions = self._repairs.conditions(queue.shard_refs())
        found = [damage for each in conditions for damage in damages(each, queue.layout)]
        state = replace(state, damages=tuple(found))
        if any(each.wrong for each in conditions):
            return state  # its counts cannot be read
        shards = self._node_reports.shards(queue)
        days, _ = self._node_reports.histories([queue], DAY)
        return replace(
            state,
            shards=shards,
            day=days.get(queue.name, ()),
            poison_pills=self._poison_pills(queue) if any(one.stats.morgue_length for one in shards) else 0,
            paused=self._queries.paused(queue),
            limited=self._node_reports.is_limited(queue),
            now=seconds(now),
            clocks={shard.index: at for shard, at in ShardReads(self._client, queue).clocks().items()},
        )

    def _poison_pills(self, queue: QueueSpec) -> int:
        """Count the poison pills among the first SEARCHED dead jobs."""
        pages = FailureReader(self._client).jobs(ShardReads(self._client, queue), dead=True)
        dead = islice((job for page in pages for job in page), SEARCHED)
        return sum(job.error == queue.poison_error for job in dead)
