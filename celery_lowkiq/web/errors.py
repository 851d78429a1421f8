"""Errors of requests, and the HTTP status of each error."""

from __future__ import annotations

from celery_lowkiq.rules.errors import (
    InvalidCall,
    LowkiqError,
    MigrationAborted,
    NotAbortable,
    NotMigrating,
    PayloadError,
    QueueMigrating,
    QueueResharded,
    StoreError,
    UnknownTracker,
)
from celery_lowkiq.web.operations import TooBusy


class NotFound(LowkiqError):
    """The named object does not exist."""


class Refused(LowkiqError):
    """The request is not allowed: the HTTP status of its answer, and more headers."""

    def __init__(self, message: str, status: int = 403, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


STATUSES: dict[type[LowkiqError], int] = {
    NotFound: 404,
    PayloadError: 422,
    UnknownTracker: 404,
    InvalidCall: 400,
    MigrationAborted: 409,
    NotAbortable: 409,
    NotMigrating: 409,
    QueueMigrating: 409,
    QueueResharded: 409,
    TooBusy: 429,
    StoreError: 503,
}


def status_of(error: LowkiqError) -> int:
    """The HTTP status of an error; 500 unless it has its own."""
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)
