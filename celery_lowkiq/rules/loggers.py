"""The loggers of the package."""

from __future__ import annotations

from logging import Logger, getLogger

package_logger: Logger = getLogger("celery_lowkiq")
store_logger: Logger = getLogger("celery_lowkiq.store")
worker_logger: Logger = getLogger("celery_lowkiq.worker")
metrics_logger: Logger = getLogger("celery_lowkiq.metrics")
flower_logger: Logger = getLogger("celery_lowkiq.flower")
#: Who changed what.
audit_logger: Logger = getLogger("celery_lowkiq.audit")
