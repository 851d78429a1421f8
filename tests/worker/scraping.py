"""Reading what a worker shows to Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.waiting import eventually
from tests.worker.nodes import Worker


def metrics_url(node: Worker) -> str:
    """Where the worker's log says that its metrics are."""
    (url,) = eventually(lambda: re.findall(r"metrics are at (\S+)", node.logs()))
    return url


def samples(url: str) -> Iterator[Sample]:
    with urlopen(url, timeout=30) as reply:
        text = reply.read().decode()
    for family in text_string_to_metric_families(text):
        yield from family.samples


def scrape(url: str) -> dict[tuple[str, ...], float]:
    """Values by name and sorted labels, as ("lowkiq_busy", "queue=record")."""
    return {
        (sample.name, *sorted(f"{name}={value}" for name, value in sample.labels.items())): sample.value
        for sample in samples(url)
    }
