"""Options of a worker that have no effect on lanes, which are threads."""

from __future__ import annotations

from typing import Any

from celery.exceptions import ImproperlyConfigured

from celery_lowkiq.integration.task.unsupported import ENDLESS, FIXED
from celery_lowkiq.rules.loggers import package_logger as logger

NO_CHILD = "there is no child to replace"
#: Attributes of a worker that Celery's thread pool ignores: the setting of each, and the reason.
WITHOUT_EFFECT = {
    "max_tasks_per_child": ("worker_max_tasks_per_child", NO_CHILD),
    "max_memory_per_child": ("worker_max_memory_per_child", NO_CHILD),
    "time_limit": ("task_time_limit", ENDLESS),
    "soft_time_limit": ("task_soft_time_limit", ENDLESS),
}


def check_threads(controller: Any) -> None:
    """Check a worker that serves ordered queues. Raises ImproperlyConfigured for --autoscale.

    Settings without effect only get a warning, since other workers of the app may use them.
    """
    if controller.autoscale:
        raise ImproperlyConfigured(f"--autoscale is not supported with ordered queues: {FIXED}")
    for name, (setting, why) in WITHOUT_EFFECT.items():
        if getattr(controller, name, None):
            logger.warning("%s has no effect on a thread pool: %s", setting, why)
