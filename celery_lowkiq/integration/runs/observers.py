"""Decides whether anything could notice that a run does not go through Celery's tracer."""

from __future__ import annotations

from typing import Any

from celery import signals
from celery.app import trace
from celery.backends import base as backends
from celery.loaders import base as loaders

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.rules.functions import is_defined_in

from .request import has_listeners

#: Hooks of a task class that the tracer calls for a run that succeeds.
HOOKS = ("before_start", "on_success", "after_return")


class RunObservers:
    """What is called for each run of a task: signals, events, hooks, and tools that replace parts of Celery.

    Sentry and New Relic wrap the tracer or the task in it; Datadog, OpenTelemetry and Django connect signals;
    Flower and exporters of metrics receive events.
    """

    def __init__(self, task: Any, consumer: Any) -> None:
        self._task = task
        self._consumer = consumer
        #: The tracer that was examined.
        self._tracer: Any = None
        self._is_observed = True
        #: Whether the tracer logs how each run ends.
        self.logs_success: bool = False

    def exist(self) -> bool:
        """Whether anything would notice a run that begins now."""
        tracer = self._task.__trace__
        if tracer is not self._tracer:
            self._examine(tracer)
        return (
            self._is_observed
            or bool(signals.task_prerun.receivers or signals.task_postrun.receivers)
            or bool(signals.task_success.receivers)
            or has_listeners(self._task, self._consumer)
        )

    def _examine(self, tracer: Any) -> None:
        """Look at what changes only with the tracer, which Celery builds at each connect to the broker."""
        self._is_observed = True
        try:
            cells = _variables(tracer)
            # Another function than Celery's, or another task than this one in it, is a tool's.
            if cells.get("fun") is self._task:
                self.logs_success = cells["_does_info"]
                self._is_observed = self._has_hooks()
        except Exception:
            logger.exception(
                "runs of %s go through Celery's tracer: its hooks cannot be read", self._task.name
            )
        self._tracer = tracer

    def _has_hooks(self) -> bool:
        task, app = self._task, self._consumer.app
        backend, loader = task.backend, app.loader
        acks_late = task.acks_late or app.conf.task_acks_late
        return bool(
            type(task).__call__ is not getattr(type(task), "run_in_lane", None)
            or any(trace.task_has_custom(task, hook) for hook in HOOKS)
            or (acks_late and app.conf.worker_deduplicate_successful_tasks)
            or not is_defined_in(backend.mark_as_done, backends)
            or not is_defined_in(backend.process_cleanup, backends)
            or not is_defined_in(loader.on_task_init, loaders)
            or not is_defined_in(loader.on_process_cleanup, loaders)
        )


def _variables(tracer: Any) -> dict[str, Any]:
    """The variables of Celery's ``build_tracer`` in its tracer; none for any other function."""
    if not is_defined_in(tracer, trace):
        return {}
    cells = zip(tracer.__code__.co_freevars, tracer.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}
