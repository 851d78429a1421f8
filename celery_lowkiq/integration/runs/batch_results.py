"""What a task function returns or raises to give each id of its batch an outcome of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_lowkiq.rules.errors import LowkiqError

from .aborts import as_failure, may_fail


class ById(dict[str, Any]):
    """Returned by a task function: ``ById({id: value})`` gives each id its own result; other ids get None."""


class JobsFailed(LowkiqError):
    """Raised by a task function: ``JobsFailed({id: exception})`` fails these jobs; the others are done.

    The exceptions may include Again, BusinessFailure, and Celery's Retry. An empty mapping, or an id that is
    not in the batch, fails the whole batch. Raises TypeError unless ``errors`` maps ids to exceptions; a str
    is accepted, since a result backend stores the error as text.
    """

    def __init__(self, errors: Mapping[str, BaseException] | str) -> None:
        given = {} if isinstance(errors, str) else dict(errors)
        for job_id, error in given.items():
            if not (isinstance(error, BaseException) and may_fail(type(error))):
                raise TypeError(
                    f"JobsFailed({{{job_id!r}: {error!r}}}) is invalid: expected an exception for each id"
                )
        self.errors: dict[str, Exception] = {job_id: as_failure(error) for job_id, error in given.items()}
        named = ", ".join(f"{job_id!r}: {error!r}" for job_id, error in self.errors.items())
        super().__init__(errors if isinstance(errors, str) else f"failed jobs: {named or 'none was named'}")

    def __reduce__(self) -> tuple[type[JobsFailed], tuple[dict[str, Exception] | str]]:
        return type(self), (self.errors or str(self),)
