"""Reads over all ordered queues of an app, for the command line, the dashboard and Flower."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.current_app import NO_APP, is_fallback_app
from celery_lowkiq.integration.app.registry import ordered_tasks, read_queue_name
from celery_lowkiq.integration.tracking.tracker import Tracker, trackers
from celery_lowkiq.rules.errors import ConfigurationError, ShardDamaged, StoreError
from celery_lowkiq.rules.findings import OK, Finding
from celery_lowkiq.rules.health_checks import check_health, unreachable, unreadable
from celery_lowkiq.rules.history import Sample, rates, span_of, sum_of
from celery_lowkiq.rules.layout import Layout
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.reports import NodeReport, current
from celery_lowkiq.rules.server_info import ServerInfo
from celery_lowkiq.rules.shard_hints import by_load
from celery_lowkiq.rules.topology import Topology, check_topology
from celery_lowkiq.rules.tracking import TrackerView
from celery_lowkiq.rules.views import Page, ShardState, Stats
from celery_lowkiq.store.inspect.health import HealthReader
from celery_lowkiq.store.inspect.masters import MasterReader
from celery_lowkiq.store.inspect.node_reports import NodeReports
from celery_lowkiq.store.inspect.queries import Queries
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.server import read_server

from .json_records import OverviewJson, QueueJson, QueueShardsJson, Reading, ShardsJson
from .queue import OrderedQueue
from .shown_jobs import ShownPlaces


@dataclass(frozen=True)
class Overview:
    """Counts of all queues, by name, their sum, and numbers of shards.

    A queue with an unreadable shard is in ``damaged`` and has no counts.
    """

    total: Stats
    by_queue: Mapping[str, Stats]
    shards: Mapping[str, int]
    damaged: Mapping[str, ShardDamaged] = field(default_factory=dict)
    #: Queues that move to another number of shards.
    migrating: Mapping[str, Layout] = field(default_factory=dict)

    def counts(self, queue: str) -> Stats:
        """Return the counts of one queue. Raises ShardDamaged."""
        if queue in self.damaged:
            raise self.damaged[queue]
        return self.by_queue[queue]


@dataclass(frozen=True)
class Histories:
    """Samples of a span of time, oldest first: of each queue, and of all together."""

    total: tuple[Sample, ...]
    by_queue: Mapping[str, tuple[Sample, ...]]


class Inspector:
    """Reads over all ordered queues of an app. Needs no worker.

    Every method may raise StoreError, and ConfigurationError for invalid settings of the app.
    """

    def __init__(
        self, app: Celery, raw: bool = False, masked: bool = False, load: Callable[[bytes], Any] | None = None
    ) -> None:
        """``raw``: payloads are the stored bytes, not decoded. ``masked``, ``load``: as ``queue.masked``."""
        self.app = app
        self._raw = raw
        self._masked = masked
        self._load = load

    def tasks(self) -> dict[str, Any]:
        """Return the ordered tasks by queue name, sorted.

        Imports the modules that the app names by ``include``, ``imports`` or ``autodiscover_tasks``.
        """
        self.app.loader.import_default_modules()
        return ordered_tasks(self.app)

    def queues(self) -> dict[str, OrderedQueue]:
        """Return the ordered queues by name, sorted."""
        return {name: self._shown(task.ordered_queue) for name, task in self.tasks().items()}

    def queue(self, name: str) -> OrderedQueue:
        """Return the queue with a name, or an unambiguous last part of it. Raises InvalidCall.

        ``sync_order`` finds ``proj.sync_order``.
        """
        return self._shown(self.task(name).ordered_queue)

    def _shown(self, queue: OrderedQueue) -> OrderedQueue:
        queue = queue.raw() if self._raw else queue
        return queue.masked(self._load) if self._masked else queue

    def find(self, job_id: Any) -> dict[str, ShownPlaces]:
        """Return the queues that have a job of an id, with its places; few payloads are read of each.

        Takes two round trips for each queue of the app. A queue where the id's shard is damaged is left out:
        :meth:`overview` names it. Raises InvalidCall.
        """
        found = {}
        for name, queue in self.queues().items():
            with contextlib.suppress(ShardDamaged):
                places = queue.job(job_id, payload_limit=1)
                if places.waiting or places.processing or places.dead:
                    found[name] = places
        return found

    def task(self, queue: str) -> Any:
        """Return the ordered task of a queue, named as for :meth:`queue`. Raises InvalidCall."""
        tasks = self.tasks()
        if not tasks and is_fallback_app(self.app):
            raise ConfigurationError(NO_APP)
        return tasks[read_queue_name(queue, tasks)]

    def overview(self, names: Iterable[str] | None = None) -> Overview:
        """Return the counts of all queues, or of the named ones, in two round trips. Raises InvalidCall.

        They include all stored shards, also when the code declares another number.
        """
        chosen = self._chosen(names)
        specs = self._as_stored(chosen)
        found = dict(zip(chosen, Queries(self._store).stats_of(specs), strict=True))
        by_queue = {name: counts for name, counts in found.items() if isinstance(counts, Stats)}
        damaged = {name: error for name, error in found.items() if isinstance(error, ShardDamaged)}
        shards = {spec.name: spec.shards for spec in specs}
        return Overview(sum(by_queue.values(), Stats()), by_queue, shards, damaged, _migrating(specs))

    def overview_json(self, names: Iterable[str] | None = None) -> OverviewJson:
        """Return the overview with rates, nodes and lanes, as a record for JSON. Raises InvalidCall."""
        names = None if names is None else list(names)
        found, past, now = self.overview(names), self.history(names), time.time()
        lanes = [node.lanes for node in self.nodes() if node.alive]
        return OverviewJson(
            queues=tuple(
                QueueJson(
                    name,
                    found.shards[name],
                    layout.former if (layout := found.migrating.get(name)) else None,
                    stats,
                    rates(past.by_queue[name], now),
                )
                for name, stats in found.by_queue.items()
            ),
            total=found.total,
            rates=rates(past.total, now),
            damaged={name: str(error) for name, error in found.damaged.items()},
            nodes=len(lanes),
            lanes=sum(map(len, lanes)),
            lanes_busy=sum(lane.running is not None for of_node in lanes for lane in of_node),
        )

    def shards_json(self, names: Iterable[str] | None = None) -> ShardsJson:
        """Return the shards of all queues, or of the named ones, as a record for JSON. Raises InvalidCall."""
        queues: list[QueueShardsJson] = []
        damaged: dict[str, str] = {}
        for name, queue in self._chosen(names).items():
            try:
                queues.append(QueueShardsJson(name, by_load(queue.shards())))
            except ShardDamaged as error:
                damaged[name] = str(error)
        return ShardsJson(queues, damaged)

    @property
    def reading(self) -> Reading:
        """How a worker of the app reads payloads."""
        return Reading(context_of(self.app).codec.load)

    @property
    def _store(self) -> RedisStore:
        return context_of(self.app).store

    def _chosen(self, names: Iterable[str] | None) -> dict[str, OrderedQueue]:
        if names is None:
            return self.queues()
        return {queue.name: queue for queue in map(self.queue, names)}

    def _as_stored(self, queues: Mapping[str, OrderedQueue]) -> list[QueueSpec]:
        # A queue whose own key is damaged must not hide the others.
        specs = [queue.spec for queue in queues.values()]
        return Registry(self._store.client).as_stored(specs, lenient=True)

    def nodes(self) -> tuple[NodeReport, ...]:
        """Return the last reports of the living nodes, and of those lost within an hour, by name."""
        return current(NodeReports(self._store).nodes())

    def history(self, names: Iterable[str] | None = None, span: str = "1h") -> Histories:
        """Return the counters of all queues, or of the named ones, as :meth:`OrderedQueue.history`.

        Raises InvalidCall.
        """
        chosen, wanted = self._chosen(names), span_of(span)
        found = NodeReports(self._store).histories([queue.spec for queue in chosen.values()], wanted)
        return Histories(sum_of(found, wanted), dict(zip(chosen, found, strict=True)))

    def shard_states(self) -> list[ShardState]:
        """Return counts and lease, or the damage, of each stored shard of all queues, in two round trips."""
        return Queries(self._store).shard_states(self._as_stored(self.queues()))

    def migrating(self) -> dict[str, Layout]:
        """Return the layouts of the queues that move to another number of shards, in one round trip."""
        return _migrating(self._as_stored(self.queues()))

    def trackers(self, limit: int = 100, after: str | None = None) -> Page[TrackerView]:
        """Return a page of the tracked groups of calls, the latest first. Raises InvalidCall."""
        return trackers(self.app, limit, after)

    def tracker(self, tracker_id: str) -> Tracker:
        """Return a tracked group. Raises UnknownTracker, and InvalidCall for an invalid id."""
        return Tracker.get(self.app, tracker_id, raw=self._raw)

    def topology(self) -> Topology:
        """Return the masters, and the shards of all queues that each of them stores."""
        context = context_of(self.app)
        specs = [queue.spec for queue in self.queues().values()]
        return MasterReader(context.store.client).read(specs, context.settings.lease_seconds)

    def server(self) -> ServerInfo:
        """Return what Redis reports about itself."""
        return read_server(self._store.client)

    def doctor(self) -> tuple[Finding, ...]:
        """Return the results of the health checks of Redis, the nodes and the queues, with advice.

        Raises ConfigurationError only: an outage of Redis is a finding.
        """
        try:
            topology = self.topology()
        except StoreError as error:
            return (unreachable(str(error)),)
        try:
            specs = [queue.spec for queue in self.queues().values()]
            found = check_health(HealthReader(self._store).read(specs, topology))
        except StoreError as error:
            found = (*check_topology(topology), unreadable(str(error)))
        return (Finding(OK, "connection", "Redis answers."), *found)


def _migrating(specs: Iterable[QueueSpec]) -> dict[str, Layout]:
    return {spec.name: spec.layout for spec in specs if spec.former_shards is not None}
