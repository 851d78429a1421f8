"""Metrics of queues and masters, and the server that shows them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from threading import Thread
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIServer

from celery import Celery
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.basics import Clock, SystemClock
from celery_lowkiq.rules.basics import metrics_logger as logger
from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.text import by_master, host_port
from celery_lowkiq.rules.topology import Kind
from celery_lowkiq.rules.views import ShardState, Stats, overdue_runs, sum_of_states

# HTTP server that exports a registry to Prometheus.


@dataclass(frozen=True)
class Server:
    """A running HTTP server with its threads."""

    server: WSGIServer
    thread: Thread

    @property
    def url(self) -> str:
        address: Any = self.server.server_address
        return f"http://{host_port(*address[:2])}/metrics"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def listen(registry: CollectorRegistry, host: str, port: int) -> Server:
    """Serve the registry; port 0 chooses a free one. Raises OSError."""
    return Server(*start_http_server(port, host, registry))


# Metrics of the masters of a cluster, or of the one behind sentinels.

#: Maximum number of masters, the first by address, that have metrics.
MOST = 100


class Figure(NamedTuple):
    """A metric of a queue or master, with the function that gets its value; None where that is unknown."""

    name: str
    text: str
    value: Callable[[Any], Any]


FIGURES = (
    Figure(
        "lowkiq_master_up",
        "1 if the master answered this scrape, and executes scripts",
        lambda one: one.unreachable is None and one.refuses is None,
    ),
    Figure("lowkiq_master_shards", "Shards of all queues on the master", lambda one: one.shard_count),
    Figure(
        "lowkiq_master_used_memory_bytes",
        "Memory that the master uses",
        lambda one: None if one.unreachable else one.server.used_memory,
    ),
    Figure("lowkiq_master_replicas", "Replicas connected to the master", lambda one: one.server.replicas),
)


class MasterCollector(Collector):
    """Collects the metrics of the masters. It yields nothing when no master responds."""

    def __init__(self, app: Celery) -> None:
        self._inspector = Inspector(app)

    def collect(self) -> Iterator[Metric]:
        try:
            topology = self._inspector.topology()
        except StoreError:
            return
        for figure in FIGURES:
            values = {master.address: figure.value(master) for master in topology.masters[:MOST]}
            yield gauge_of(figure.name, figure.text, values, "master")
        yield GaugeMetricFamily(
            "lowkiq_clock_skew_seconds",
            "Least difference between the clocks of two masters",
            value=topology.clock_skew,
        )


# Metrics of queues, read from Redis at each scrape.

GAUGES = (
    Figure("lowkiq_length", "Waiting jobs", lambda stats: stats.length),
    Figure("lowkiq_calls_waiting", "Calls in these jobs", lambda stats: stats.calls),
    Figure("lowkiq_fresh", "Waiting jobs that never failed", lambda stats: stats.fresh),
    Figure("lowkiq_retries", "Waiting jobs that failed before", lambda stats: stats.retries),
    Figure("lowkiq_morgue_length", "Jobs in the morgue", lambda stats: stats.morgue_length),
    Figure("lowkiq_paused_jobs", "Waiting jobs of paused or held ids", lambda stats: stats.paused_jobs),
    Figure("lowkiq_paused_ids", "Paused ids, with or without a waiting job", lambda stats: stats.paused_ids),
    Figure("lowkiq_held", "Ids that a dead payload holds", lambda stats: stats.held),
    Figure("lowkiq_held_seconds", "How long the oldest of these is held", lambda stats: stats.held_for),
    Figure("lowkiq_busy", "Jobs in processing", lambda stats: stats.busy),
    Figure(
        "lowkiq_lag_seconds", "How long the oldest job that may be claimed is due", lambda stats: stats.lag
    ),
    Figure("lowkiq_oldest_seconds", "How long the oldest job that waits is due", lambda stats: stats.oldest),
    Figure("lowkiq_oldest_call_seconds", "How long the oldest call waits", lambda stats: stats.oldest_call),
    Figure(
        "lowkiq_busiest_id_calls",
        "Waiting calls of the id with the most",
        lambda stats: max((found.calls for found in stats.busiest), default=0),
    ),
    Figure("lowkiq_shards_paused", "Paused shards", lambda stats: stats.paused),
)
COUNTERS = (
    Figure("lowkiq_processed", "Jobs that succeeded", lambda stats: stats.processed),
    Figure("lowkiq_failed", "Jobs that failed, once for each run", lambda stats: stats.failed),
    Figure("lowkiq_dead", "Payloads that went to the morgue", lambda stats: stats.dead),
    Figure("lowkiq_merged", "Runs that merged calls have saved", lambda stats: stats.merged),
    Figure(
        "lowkiq_dropped",
        "Payloads that were dropped without a run: revoked, expired, or by a policy",
        lambda stats: stats.dropped,
    ),
)


class QueueCollector(Collector):
    """Collects the metrics of all queues of an app, in four round trips, one scrape at a time.

    A queue with a damaged shard has no sums, because its counters would decrease; it still has its numbers of
    shards. On a cluster, a queue with shards on masters that are unreachable, or deny a right, has the gauges
    of the others, and no counters for the same reason.
    """

    def __init__(self, app: Celery, clock: Clock | None = None) -> None:
        """Raises ConfigurationError for invalid settings of the app."""
        self._inspector = Inspector(app)
        self._lease_seconds = context_of(app).settings.lease_seconds
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._watches: dict[ShardRef, LeaseWatch] = {}
        self._problem = ""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; during an outage of Redis, only ``lowkiq_redis_up``."""
        with self._lock:
            try:
                reads = self._inspector.partial()
                states = reads.shard_states()
                nodes = reads.nodes_if_there()
            except StoreError as error:
                self._log_problem(str(error))
                yield GaugeMetricFamily(*UP, value=0)
                return
            self._log_problem("; ".join(_problems(states, reads.denied)))
            unowned = self._unowned(state for state in states if not (state.damage or state.unreachable))
        by_queue = {queue: list(group) for queue, group in groupby(states, lambda state: state.shard.queue)}
        yield GaugeMetricFamily(*UP, value=1)
        yield from _figures(by_queue)
        yield gauge_of("lowkiq_shards_unowned", "Shards without an owner", unowned)
        damaged = {queue: sum(1 for state in group if state.damage) for queue, group in by_queue.items()}
        yield gauge_of("lowkiq_shards_damaged", "Shards that cannot be read: see lowkiq repair", damaged)
        if nodes is not None:
            overdue = dict.fromkeys(by_queue, 0) | Counter(run.shard.queue for run in overdue_runs(nodes))
            yield gauge_of("lowkiq_runs_overdue", "Runs that take too long: see lowkiq doctor", overdue)
        unreachable = {
            queue: sum(1 for state in group if state.unreachable) for queue, group in by_queue.items()
        }
        yield gauge_of(
            "lowkiq_shards_unreachable",
            "Shards in no other figure: their masters are unreachable or deny a right",
            unreachable,
        )

    def _log_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            logger.error("metrics lack the figures of queues: %s", problem)
        self._problem = problem

    def _unowned(self, states: Iterable[ShardState]) -> dict[str, int]:
        """Count free shards by queue. A lease has its last owner; only the next scrape shows a renewal."""
        now = self._clock.monotonic()
        unowned: dict[str, int] = {}
        for state in states:
            watch = self._watches.get(state.shard) or LeaseWatch(QueueSpec(state.shard.queue), state.shard)
            watch = self._watches[state.shard] = watch.observed(state.lease, now)
            free = watch.may_take(now, self._lease_seconds)
            unowned[state.shard.queue] = unowned.get(state.shard.queue, 0) + free
        return unowned


def queue_registry(app: Celery) -> CollectorRegistry:
    """Return a registry with the metrics of an app's queues and masters. Raises ConfigurationError."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(app))
    if context_of(app).store.client.servers.kind is not Kind.SERVER:
        registry.register(MasterCollector(app))
    return registry


UP = ("lowkiq_redis_up", "1 if Redis answered this scrape")


def _problems(states: Sequence[ShardState], denied: Mapping[str, str]) -> Iterator[str]:
    yield from (str(state.damage) for state in states if state.damage)
    lost = by_master({state.shard: state.unreachable for state in states})
    yield from (
        f"{shards} lie on {master}. {denied[master]}"
        if master in denied
        else f"{master} is unreachable with {shards}"
        for master, shards in lost.items()
    )


def _figures(by_queue: dict[str, list[ShardState]]) -> Iterator[Metric]:
    totals = {queue: sum_of_states(states) for queue, states in by_queue.items()}
    read = {queue: stats for queue, stats in totals.items() if isinstance(stats, Stats)}
    sums = {queue: stats for queue, stats in read.items() if stats.missing < len(by_queue[queue])}
    for figure in GAUGES:
        yield gauge_of(
            figure.name, figure.text, {queue: figure.value(stats) for queue, stats in sums.items()}
        )
    for figure in COUNTERS:
        counter = CounterMetricFamily(figure.name, figure.text, labels=["queue"])
        for queue, stats in sums.items():
            if not stats.missing:
                counter.add_metric([queue], figure.value(stats))
        yield counter
    yield gauge_of("lowkiq_shards", "Shards of the queue", {q: len(states) for q, states in by_queue.items()})


def gauge_of(name: str, text: str, values: Mapping[str, float | None], label: str = "queue") -> Metric:
    """A gauge with a value for each label; without the unknown ones."""
    gauge = GaugeMetricFamily(name, text, labels=[label])
    for labelled, value in values.items():
        if value is not None:
            gauge.add_metric([labelled], value)
    return gauge
