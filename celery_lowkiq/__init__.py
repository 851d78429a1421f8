"""Ordered tasks for Celery: calls of one id are merged, kept in order, and never run twice at once."""

from __future__ import annotations

from celery_lowkiq.integration.calls.validation import BulkEntry
from celery_lowkiq.integration.runs.base_exceptions import RunAborted
from celery_lowkiq.integration.runs.outcomes import Again, BusinessFailure, ById, JobsFailed
from celery_lowkiq.integration.task.decorator import ordered_task
from celery_lowkiq.integration.task.task import OrderedTask
from celery_lowkiq.integration.tracking.tracker import Tracker, track, trackers
from celery_lowkiq.rules.errors import (
    ConfigurationError,
    FormatMismatch,
    InvalidCall,
    LowkiqError,
    MigrationPaused,
    NotOwner,
    OutdatedNodes,
    PayloadError,
    QueueFull,
    QueueMigrating,
    QueueResharded,
    ShardDamaged,
    ShardsAway,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownTracker,
)

__version__ = "0.1.0"

__all__ = [
    "Again",
    "BulkEntry",
    "BusinessFailure",
    "ById",
    "ConfigurationError",
    "FormatMismatch",
    "InvalidCall",
    "JobsFailed",
    "LowkiqError",
    "MigrationPaused",
    "NotOwner",
    "OrderedTask",
    "OutdatedNodes",
    "PayloadError",
    "QueueFull",
    "QueueMigrating",
    "QueueResharded",
    "RunAborted",
    "ShardDamaged",
    "ShardsAway",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Tracker",
    "UnknownTracker",
    "ordered_task",
    "track",
    "trackers",
]
