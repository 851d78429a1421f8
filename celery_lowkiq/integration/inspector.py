"""Reads over all ordered queues of an app, for the command line, the dashboard and Flower."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from celery import Celery

from celery_lowkiq.integration.app import context_of, ordered_tasks, read_queue_name
from celery_lowkiq.integration.current import NO_APP, is_fallback_app, naming
from celery_lowkiq.integration.json_records import (
    OverviewJson,
    PayloadMask,
    QueueJson,
    QueueShardsJson,
    ShardsJson,
    ShownPlaces,
)
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.integration.settings import Settings
from celery_lowkiq.integration.tracking import Tracker, trackers
from celery_lowkiq.rules.errors import ConfigurationError, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.health import by_load, check_health, reachable, unreachable, unreadable
from celery_lowkiq.rules.models import Layout, QueueSpec, ShardRef
from celery_lowkiq.rules.text import by_master
from celery_lowkiq.rules.topology import ServerInfo, Topology, check_topology, check_users
from celery_lowkiq.rules.tracking import TrackedCall, TrackerView
from celery_lowkiq.rules.views import (
    Finding,
    NodeReport,
    Page,
    Rates,
    Sample,
    ShardState,
    Stats,
    current,
    rates,
    span_of,
    sum_of,
    sum_of_states,
)
from celery_lowkiq.store import counts, diagnosis, node_reports
from celery_lowkiq.store.client import Client, read_server
from celery_lowkiq.store.health import read_state, read_topology
from celery_lowkiq.store.registry import as_known


@dataclass(frozen=True)
class Overview:
    """Counts of all queues, by name, their sum, and numbers of shards.

    A queue with an unreadable shard is in ``damaged`` and has no counts. Those of the others, and the sum,
    lack the shards of masters that are ``unreachable``.
    """

    total: Stats
    by_queue: Mapping[str, Stats]
    shards: Mapping[str, int]
    damaged: Mapping[str, ShardDamaged] = field(default_factory=dict)
    #: Queues that move to another number of shards.
    migrating: Mapping[str, Layout] = field(default_factory=dict)
    #: Names of the shards that are not counted, by the address of their master.
    unreachable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Histories:
    """Samples of a span of time, oldest first: of each queue, and of all together.

    Those of ``unknown`` queues lie on a master that is unreachable.
    """

    total: tuple[Sample, ...]
    by_queue: Mapping[str, tuple[Sample, ...]]
    unknown: tuple[str, ...] = ()

    def rates(self, now: float) -> Rates | None:
        """Return the jobs a second of all queues together; None: not known."""
        return None if self.unknown else rates(self.total, now)


class FoundId(dict[str, ShownPlaces]):
    """The queues that have a job of an id, with its places.

    On a cluster, ``unreachable`` has the names of the id's shards that were not read, by the address of
    their master.
    """

    unreachable: Mapping[str, str] = MappingProxyType({})


class Inspector:
    """Reads over all ordered queues of an app. Needs no worker.

    Every method may raise StoreError, and ConfigurationError for invalid settings of the app.
    """

    def __init__(self, app: Celery, raw: bool = False, masked: bool = False) -> None:
        """``raw``, ``masked``: as of a queue."""
        self.app = app
        self._raw = raw
        self._masked = masked
        self._reader: Client | None = None

    def partial(self) -> Inspector:
        """Return an inspector whose counts lack the shards of masters that deny a right, as of those that
        are unreachable. ``denied`` names them.
        """
        found = copy(self)
        found._reader = context_of(self.app).store.client.reader()
        return found

    @property
    def denied(self) -> dict[str, str]:
        """The errors of the masters of a cluster that have denied a right, by their address."""
        return dict(self._client.denied)

    def tasks(self) -> dict[str, Any]:
        """Return the ordered tasks by queue name, sorted.

        Imports the modules that the app names by ``include``, ``imports`` or ``autodiscover_tasks``.
        Raises ConfigurationError if no app is given and Celery's fallback has none.
        """
        self.app.loader.import_default_modules()
        tasks = ordered_tasks(self.app)
        if not tasks and is_fallback_app(self.app):
            raise ConfigurationError(NO_APP)
        return tasks

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
        return queue.masked() if self._masked else queue

    def find(self, job_id: Any) -> FoundId:
        """Return the queues that have a job of an id, with its places; few payloads are read of each.

        Takes two round trips for each queue of the app. A queue where the id's shard is damaged is left out:
        :meth:`overview` names it. Raises InvalidCall.
        """
        found, unreachable = FoundId(), dict[ShardRef, str | None]()
        for name, queue in self.queues().items():
            try:
                places = queue.job(job_id, payload_limit=1)
            except ShardDamaged:
                continue
            except StoreUnavailable as error:
                self._client.check_reachable([error])
                shard = ShardRef(name, queue.shard_of(job_id))
                unreachable[shard] = self._client.servers.master_of(shard)
            else:
                if places.waiting or places.processing or places.dead:
                    found[name] = places
        found.unreachable = by_master(unreachable)
        return found

    def task(self, queue: str) -> Any:
        """Return the ordered task of a queue, named as for :meth:`queue`. Raises InvalidCall."""
        tasks = self.tasks()
        return tasks[read_queue_name(queue, tasks)]

    def overview(self, names: Iterable[str] | None = None) -> Overview:
        """Return the counts of all queues, or of the named ones, in two round trips. Raises InvalidCall.

        They include all stored shards, also when the code declares another number.
        """
        specs = self._as_stored(self._specs(names))
        states = counts.shard_states(self._client, specs)
        by_name = groupby(states, attrgetter("shard.queue"))
        found = {name: sum_of_states(group) for name, group in by_name}
        by_queue = {name: one for name, one in found.items() if isinstance(one, Stats)}
        damaged = {name: error for name, error in found.items() if isinstance(error, ShardDamaged)}
        shards = {spec.name: spec.shards for spec in specs}
        return Overview(
            total=sum(by_queue.values(), Stats()),
            by_queue=by_queue,
            shards=shards,
            damaged=damaged,
            migrating=_migrating(specs),
            unreachable=by_master({state.shard: state.unreachable for state in states}),
        )

    def overview_json(self, names: Iterable[str] | None = None) -> OverviewJson:
        """Return the overview with rates, nodes and lanes, as a record for JSON. Raises InvalidCall."""
        names, reads = None if names is None else list(names), self.partial()
        found, past, now = reads.overview(names), reads.history(names), time.time()
        nodes = reads.nodes_if_there()
        lanes = None if nodes is None else [node.lanes for node in nodes if node.alive]
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
            rates=past.rates(now),
            damaged={name: str(error) for name, error in found.damaged.items()},
            unreachable=found.unreachable,
            nodes=None if lanes is None else len(lanes),
            lanes=None if lanes is None else sum(map(len, lanes)),
            lanes_busy=None
            if lanes is None
            else sum(lane.running is not None for of_node in lanes for lane in of_node),
            denied=reads.denied,
        )

    def shards_json(self, names: Iterable[str] | None = None) -> ShardsJson:
        """Return the shards of all queues, or of the named ones, as a record for JSON. Raises InvalidCall."""
        queues: list[QueueShardsJson] = []
        damaged: dict[str, str] = {}
        unreachable: dict[ShardRef, str | None] = {}
        reads = self.partial()
        for spec in self._specs(names):
            try:
                shards = diagnosis.shards(reads._client, *reads._as_stored([spec]))
            except (ShardDamaged, StoreUnavailable) as error:
                self._client.check_reachable([error])
                damaged[spec.name] = str(error)
            else:
                queues.append(QueueShardsJson(spec.name, by_load(shards)))
                unreachable |= {ShardRef(spec.name, one.index): one.unreachable for one in shards}
        return ShardsJson(queues, damaged, by_master(unreachable), reads.denied)

    @property
    def _client(self) -> Client:
        return self._reader or context_of(self.app).store.client

    def _specs(self, names: Iterable[str] | None = None) -> list[QueueSpec]:
        """Return the specs of all queues, or of the named ones. Raises InvalidCall."""
        tasks = self.tasks()
        chosen = tasks if names is None else dict.fromkeys(read_queue_name(name, tasks) for name in names)
        return [tasks[name].queue_spec for name in chosen]

    def _as_stored(self, specs: Sequence[QueueSpec]) -> list[QueueSpec]:
        # A queue whose own key is damaged must not hide the others.
        return as_known(self._client, specs)

    def nodes(self) -> tuple[NodeReport, ...]:
        """Return the last reports of the living nodes, and of those lost within an hour, by name."""
        return current(node_reports.read_nodes(self._client))

    def nodes_if_there(self) -> tuple[NodeReport, ...] | None:
        """Return :meth:`nodes`; None while the master with the reports is unreachable, and others respond."""
        return self._client.unless_unreachable(self.nodes)

    def history(self, names: Iterable[str] | None = None, span: str = "1h") -> Histories:
        """Return the counters of all queues, or of the named ones, as :meth:`OrderedQueue.history`.

        Raises InvalidCall.
        """
        specs, wanted = self._specs(names), span_of(span)
        found, errors = node_reports.histories(self._client, specs, wanted)
        known = {spec.name: found.get(spec.name, ()) for spec in specs}
        return Histories(sum_of(known.values(), wanted), known, tuple(errors))

    def shard_states(self) -> list[ShardState]:
        """Return counts and lease, or the damage, of each stored shard of all queues, in two round trips."""
        return counts.shard_states(self._client, self._as_stored(self._specs()))

    def migrating(self) -> dict[str, Layout]:
        """Return the layouts of the queues that move to another number of shards, in one round trip."""
        return _migrating(self._as_stored(self._specs()))

    def trackers(self, limit: int = 100, after: str | None = None) -> Page[TrackerView]:
        """Return a page of the trackers, the latest first. Raises InvalidCall."""
        return trackers(self.app, limit, after)

    def tracker(self, tracker_id: str) -> Tracker:
        """Return a tracker. Raises UnknownTracker, and InvalidCall for an invalid id."""
        return Tracker.get(self.app, tracker_id, raw=self._raw)

    def tracked_calls(
        self,
        id: str,  # noqa: A002
        state: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> Page[TrackedCall]:
        """Return a page of a tracker's calls, in one state or ("") in any, in the order in which they came.

        Raises UnknownTracker and InvalidCall.
        """
        page = self.tracker(id).jobs(state or None, limit, after)
        tasks, redactor = self.tasks(), context_of(self.app).settings.redactor

        def masked(call: TrackedCall) -> TrackedCall:
            form = tasks[call.queue].call_form if call.queue in tasks else None
            return replace(call, payload=PayloadMask(redactor, form).stored(call.payload))

        return page.map(masked) if self._masked else page

    def topology(self) -> Topology:
        """Return the masters, and the shards of all queues that each of them stores."""
        context = context_of(self.app)
        return read_topology(context.store.client, self._specs(), context.settings.lease_seconds)

    def server(self) -> ServerInfo:
        """Return what Redis reports about itself."""
        return read_server(self._client)

    def doctor(self) -> tuple[Finding, ...]:
        """Return the results of the health checks of Redis, the nodes and the queues, with advice.

        Raises ConfigurationError only: an outage of Redis is a finding.
        """
        try:
            topology = self.topology()
        except StoreError as error:
            return (unreachable(error, _login_setting(context_of(self.app).settings)),)
        try:
            found = check_health(read_state(self._client.reader(), self._specs(), topology))
        except StoreError as error:
            found = (reachable(topology), *check_topology(topology), unreadable(str(error)))
        if (cluster := self._client.cluster) is not None:
            found = (*found, *check_users(cluster.refusing_replicas()))
        texts = ((naming(one.text, self.app), naming(one.advice, self.app)) for one in found)
        return tuple(replace(one, text=t, advice=a) for one, (t, a) in zip(found, texts, strict=True))


def _login_setting(settings: Settings) -> str:
    if settings.redis_options.keys() & {"username", "password"}:
        return "lowkiq_redis_options"
    return "lowkiq_url" if settings.url else "broker_url"


def _migrating(specs: Iterable[QueueSpec]) -> dict[str, Layout]:
    return {spec.name: spec.layout for spec in specs if spec.former_shards is not None}
