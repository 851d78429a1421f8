"""Ordered tasks for Celery: calls of one id are merged, kept in order, and never run twice at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_lowkiq.integration.calls import BulkEntry
from celery_lowkiq.integration.decisions import (
    Again,
    BusinessFailure,
    ById,
    JobsFailed,
    PoisonPill,
    RunAborted,
)
from celery_lowkiq.integration.decorator import ordered_task
from celery_lowkiq.integration.records import BuriedByOperator
from celery_lowkiq.integration.task import OrderedTask
from celery_lowkiq.integration.tracking import Tracker, track, trackers
from celery_lowkiq.rules.errors import (
    AccessDenied,
    ConfigurationError,
    FormatMismatch,
    InvalidCall,
    LowkiqError,
    MigrationPaused,
    NotOwner,
    PayloadError,
    QueueFull,
    QueueMigrating,
    QueueResharded,
    ShardDamaged,
    ShardsUnreachable,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UndecodablePayload,
    UnknownTracker,
)
from celery_lowkiq.rules.job_filter import FailureFilter

if TYPE_CHECKING:
    from celery_lowkiq.integration.inspector import Inspector

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Again",
    "BulkEntry",
    "BuriedByOperator",
    "BusinessFailure",
    "ById",
    "ConfigurationError",
    "FailureFilter",
    "FormatMismatch",
    "Inspector",
    "InvalidCall",
    "JobsFailed",
    "LowkiqError",
    "MigrationPaused",
    "NotOwner",
    "OrderedTask",
    "PayloadError",
    "PoisonPill",
    "QueueFull",
    "QueueMigrating",
    "QueueResharded",
    "RunAborted",
    "ShardDamaged",
    "ShardsUnreachable",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Tracker",
    "UndecodablePayload",
    "UnknownTracker",
    "ordered_task",
    "track",
    "trackers",
]


def __getattr__(name: str) -> Any:
    """Import what programs that only call do not need."""
    if name == "Inspector":
        from celery_lowkiq.integration.inspector import Inspector

        return Inspector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
