"""Metrics of a node, served from the process that has its lanes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from celery import Celery
from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from celery_lowkiq.integration.app import ordered_tasks
from celery_lowkiq.metrics.queues import Server, gauge_of, listen, queue_registry
from celery_lowkiq.rules.basics import metrics_logger as logger
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.worker.runtime import Runtime

#: Upper bounds of the buckets of histograms.
RUN_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
WAIT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 21600)
LAG_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
BATCH_JOBS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

LEASE_RENEWALS = ("lowkiq_lease_renewals", "Renewals of leases")
LEASES_LOST = ("lowkiq_leases_lost", "Shards that were lost to another node")
REDIS_ERRORS = ("lowkiq_redis_errors", "Requests that Redis did not answer, or refused")
LOOP_LAG = ("lowkiq_loop_lag_seconds", "Seconds by which the event loop of async def tasks was late")
UNVERIFIED = ("lowkiq_unverified", "Payloads that went to the morgue since their signatures did not verify")
REDIS_OUTAGES = ("lowkiq_redis_outages", "Outages of Redis")


class _Runs(NamedTuple):
    """The histograms of a queue."""

    seconds: Histogram
    jobs: Histogram
    wait: Histogram


class NodeMetrics(Collector):
    """``worker.ports.Meter`` with an HTTP server that also exports the figures of all queues."""

    def __init__(self, app: Celery, node: str, host: str, port: int) -> None:
        """``node``: the worker's name; ``host`` and ``port``: the address that :meth:`serve` listens on.

        Raises ConfigurationError for invalid settings of the app.
        """
        self._node = node
        self._address = (host, port)
        self._runtime: Runtime | None = None
        self._server: Server | None = None
        self._registry = queue_registry(app)
        self._registry.register(self)
        self._renewals = self._counter(*LEASE_RENEWALS)
        self._lost = self._counter(*LEASES_LOST)
        self._errors = self._counter(*REDIS_ERRORS)
        self._outages = self._counter(*REDIS_OUTAGES)
        self._unverified = Counter(*UNVERIFIED, ["queue"], registry=self._registry)
        for queue in ordered_tasks(app):
            # From 0, because no rule sees an increase of a series that begins with one.
            self._unverified.labels(queue)
        lag = Histogram(*LOOP_LAG, ["node"], buckets=LAG_SECONDS, registry=self._registry)
        self._lag = lag.labels(node)
        seconds = self._histogram("lowkiq_run_seconds", "How long a batch ran", RUN_SECONDS)
        jobs = self._histogram("lowkiq_batch_jobs", "Jobs of a batch", BATCH_JOBS)
        wait = self._histogram("lowkiq_wait_seconds", "Seconds from due until started", WAIT_SECONDS)
        self._runs = cache(lambda queue: _Runs(seconds.labels(queue), jobs.labels(queue), wait.labels(queue)))

    # -- the server

    def serve(self, runtime: Runtime) -> None:
        """Start to answer scrapes. If the port is taken, log an error and go on without metrics."""
        self._runtime = runtime
        host, port = self._address
        try:
            self._server = listen(self._registry, host, port)
        except OSError as error:
            logger.error(
                "this worker has no metrics: could not listen on lowkiq_metrics_port=%s of %s (%s). "
                "Give each worker of a machine its own port",
                port,
                host,
                error.strerror or error,
            )
        else:
            logger.info("metrics are at %s", self._server.url)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of lanes."""
        if self._runtime is None:
            return
        lanes = {
            ("lowkiq_lanes", "Lanes of the node"): self._runtime.lanes,
            ("lowkiq_lanes_busy", "Lanes that run a batch"): self._runtime.busy(),
        }
        for (name, text), value in lanes.items():
            yield gauge_of(name, text, {self._node: value}, "node")

    # -- the meter

    def ran(self, batch: Batch, began_at: float, seconds: float) -> None:
        """Observe the run time, the size, and the waiting time (s) of each job."""
        runs = self._runs(batch.queue.name)
        runs.seconds.observe(seconds)
        runs.jobs.observe(len(batch.jobs))
        for job in batch.jobs:
            runs.wait.observe(max(0.0, began_at - job.perform_in))

    def renewed(self, leases: int) -> None:
        self._renewals.inc(leases)

    def lost(self) -> None:
        self._lost.inc()

    def refused(self) -> None:
        self._errors.inc()

    def outage(self) -> None:
        self._outages.inc()

    def unverified(self, queue: str, payloads: int) -> None:
        self._unverified.labels(queue).inc(payloads)

    def loop_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["node"], registry=self._registry).labels(self._node)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["queue"], buckets=bounds, registry=self._registry)
