"""Reads the state for the health checks: the nodes, and how each queue is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.health_checks import QueueState, SystemState
from celery_lowkiq.rules.history import DAY
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Damage, damages
from celery_lowkiq.rules.reports import current
from celery_lowkiq.rules.topology import Topology
from celery_lowkiq.store.jobs.registry import parse_layout
from celery_lowkiq.store.leases.heartbeats import seconds
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.keys import FORMAT, queue_key
from celery_lowkiq.store.scripts.replies import reads_replies

from .failures import FailureReader
from .node_reports import NodeReports
from .queries import Queries
from .shard_reads import ShardReads

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
        known, now = self._client.readable([command, ("TIME",)])
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
        (day,) = self._node_reports.histories([queue], DAY)
        return replace(
            state,
            shards=shards,
            day=() if isinstance(day, StoreUnavailable) else day,
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
