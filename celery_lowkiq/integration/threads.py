"""Celery's ways to change a pool while it runs, which have no meaning for lanes: they are threads."""

from __future__ import annotations

import logging
from typing import Any

from celery.exceptions import ImproperlyConfigured

logger = logging.getLogger("celery_lowkiq")

FIXED = "the number of lanes is fixed when the worker starts: use -c, or lowkiq_lanes"
#: What Celery's thread pool passes by.
PER_CHILD = ("max_tasks_per_child", "max_memory_per_child")


def check_threads(controller: Any) -> None:
    """Of a worker that serves ordered queues. Raises ImproperlyConfigured for --autoscale; settings that are
    passed by only get a warning, since other workers of the app may use them.
    """
    if controller.autoscale:
        raise ImproperlyConfigured(f"--autoscale is not supported with ordered queues: {FIXED}")
    for name in PER_CHILD:
        if getattr(controller, name, None):
            logger.warning("worker_%s has no effect on a thread pool: there is no child to replace", name)
