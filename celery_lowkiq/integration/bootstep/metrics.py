"""Opens a worker's metrics server. It needs an extra package, so it is imported only when enabled."""

from __future__ import annotations

from typing import Any, Protocol

from celery import Celery
from kombu.utils.imports import symbol_by_name

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.worker.ports import Meter
from celery_lowkiq.worker.runtime import Runtime

NODE_METRICS = "celery_lowkiq.metrics.node:NodeMetrics"


class Metrics(Meter, Protocol):
    """A meter with a server that exports its values."""

    def serve(self, runtime: Runtime) -> None:
        """Start the server."""

    def close(self) -> None:
        """Stop the server."""


def open_metrics(app: Celery, node: str) -> Metrics | None:
    """Return the metrics of a worker, or None without ``lowkiq_metrics_port``; ``node``: the worker's name.

    Raises ConfigurationError without prometheus_client.
    """
    settings = context_of(app).settings
    if settings.metrics_port is None:
        return None
    try:
        node_metrics: Any = symbol_by_name(NODE_METRICS)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"lowkiq_metrics_port={settings.metrics_port} needs {error.name}: "
            "pip install 'celery-lowkiq[metrics]'"
        ) from error
    metrics: Metrics = node_metrics(app, node, settings.metrics_host, settings.metrics_port)
    return metrics
