"""The way to a worker's metrics. They are an edge that needs a package of its own: found by name, and only
where a port is set.
"""

from __future__ import annotations

from typing import Any, Protocol

from celery import Celery
from kombu.utils.imports import symbol_by_name

from celery_lowkiq.integration.app.context import home_of
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.worker.ports import Meter
from celery_lowkiq.worker.runtime import Runtime

NODE_METRICS = "celery_lowkiq.metrics.node:NodeMetrics"


class Metrics(Meter, Protocol):
    """A meter that others can read."""

    def serve(self, runtime: Runtime) -> None:
        """Let it be read from now on."""

    def close(self) -> None:
        """No more."""


def open_metrics(app: Celery, node: str) -> Metrics | None:
    """What ``lowkiq_metrics_port`` asks for; ``node`` is the worker's name.

    Raises ConfigurationError without prometheus_client.
    """
    settings = home_of(app).settings
    if settings.metrics_port is None:
        return None
    try:
        made: Any = symbol_by_name(NODE_METRICS)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"lowkiq_metrics_port={settings.metrics_port} needs {error.name}: "
            "pip install 'celery-lowkiq[metrics]'"
        ) from error
    metrics: Metrics = made(app, node, settings.metrics_host, settings.metrics_port)
    return metrics
