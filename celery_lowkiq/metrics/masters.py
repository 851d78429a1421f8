"""Metrics of the masters of a cluster, or of the one behind sentinels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from celery import Celery
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.topology import Master

LABELS = ("master",)
#: Maximum number of masters, the first by address, that have metrics.
MOST = 100


class Figure(NamedTuple):
    """A metric of a master, with the function that gets its value; None where that is unknown."""

    name: str
    text: str
    value: Callable[[Master], float | None]


FIGURES = (
    Figure(
        "lowkiq_master_up",
        "Whether the master answered this scrape, and executes scripts",
        lambda one: one.away is None and one.refuses is None,
    ),
    Figure("lowkiq_master_shards", "Shards of all queues on the master", lambda one: one.shard_count),
    Figure(
        "lowkiq_master_used_memory_bytes",
        "Memory that the master uses",
        lambda one: None if one.away else one.server.used_memory,
    ),
    Figure("lowkiq_master_replicas", "Replicas connected to the master", lambda one: one.server.replicas),
)


class MasterCollector(Collector):
    """Collects the metrics of the masters. It yields nothing when none answers."""

    def __init__(self, app: Celery) -> None:
        self._inspector = Inspector(app)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        try:
            topology = self._inspector.topology()
        except StoreError:
            return
        for figure in FIGURES:
            gauge = GaugeMetricFamily(figure.name, figure.text, labels=LABELS)
            for master in topology.masters[:MOST]:
                if (value := figure.value(master)) is not None:
                    gauge.add_metric([master.address], value)
            yield gauge
        yield GaugeMetricFamily(
            "lowkiq_clock_skew_seconds",
            "Least difference between the clocks of two masters",
            value=topology.clock_skew,
        )
