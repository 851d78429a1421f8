"""Reads the state for the health checks: the server, the nodes, and how each queue is stored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_lowkiq.rules.health_checks import QueueState, Server, SystemState
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Damage, damages
from celery_lowkiq.rules.reports import current
from celery_lowkiq.store.jobs.registry import parse_layout
from celery_lowkiq.store.leases.heartbeats import seconds
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.keys import FORMAT, MIGRATING_FORMAT, queue_key
from celery_lowkiq.store.scripts.replies import reads_replies
from celery_lowkiq.store.scripts.server import reply_if_permitted

from .node_reports import NodeReports
from .queries import Queries

SECTIONS = ("server", "memory", "persistence")


@reads_replies
class HealthReader:
    """Reads the state for :func:`rules.health_checks.check_health`.

    What the connection's user may not read stays unknown.
    """

    def __init__(self, store: RedisStore) -> None:
        self._client = store.client
        self._node_reports = NodeReports(store)
        self._queries = Queries(store)
        self._repairs = Repairs(store.client)

    def read(self, queues: Sequence[QueueSpec]) -> SystemState:
        """Return the state of server, nodes and queues. Raises StoreError."""
        before = time.time()
        (now,) = self._client.commands([("TIME",)])
        after = time.time()
        ahead = seconds(now) - (before + after) / 2
        return SystemState(
            now=seconds(now),
            format=FORMAT,
            server=self._server(ahead, give_or_take=(after - before) / 2),
            nodes=current(self._node_reports.nodes()),
            queues=[self._queue(queue) for queue in queues],
        )

    def _server(self, ahead: float, give_or_take: float) -> Server:
        info: dict[str, Any] = {}
        for section in SECTIONS:
            info |= reply_if_permitted(self._client, "INFO", section)
        # Before Redis 7, CONFIG GET takes one name only.
        config: dict[str, Any] = {}
        for name in ("save", "appendfsync"):
            config |= reply_if_permitted(self._client, "CONFIG GET", name)
        return Server(
            name="Valkey" if info.get("server_name") == "valkey" else "Redis",
            version=str(info.get("valkey_version") or info.get("redis_version") or ""),
            policy=info.get("maxmemory_policy"),
            maxmemory=int(info.get("maxmemory", 0)),
            aof=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
            appendfsync=config.get("appendfsync"),
            save=config.get("save"),
            written=_written(info),
            ahead=ahead,
            give_or_take=give_or_take,
        )

    def _queue(self, queue: QueueSpec) -> QueueState:
        key = queue_key(queue.name)
        (known,) = self._client.readable([("HMGET", key, "shards", "format", "migration_paused")])
        if known is None:
            text = f"the key {key} has the wrong type. Delete it: the next call registers the queue again"
            return QueueState(queue.name, queue.shards, None, None, damages=(Damage(None, text),))
        layout, stored_format = parse_layout(known[0]), int(known[1]) if (known[1] or b"").isdigit() else None
        if stored_format == MIGRATING_FORMAT:
            stored_format = FORMAT
        state = QueueState(queue.name, queue.shards, layout.shards if layout else None, stored_format)
        queue = queue.with_layout(layout or queue.layout)
        state = replace(state, former=queue.former_shards, migration_paused=known[2] is not None)
        conditions = self._repairs.conditions(queue.shard_refs())
        found = [damage for each in conditions for damage in damages(each, queue.layout)]
        state = replace(state, damages=tuple(found))
        if any(each.wrong for each in conditions):
            return state  # its counts cannot be read
        return replace(
            state,
            shards=self._node_reports.shards(queue),
            paused=self._queries.paused(queue),
            limited=self._node_reports.is_limited(queue),
        )


def _written(info: Mapping[str, Any]) -> bool:
    of_aof = info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok"
    return not of_aof and info.get("rdb_last_bgsave_status", "ok") == "ok"
