"""Adds calls to their tracker before they are pushed, so that it has every call that was accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from celery_lowkiq.integration.app.codec import MARK
from celery_lowkiq.integration.app.context import AppContext
from celery_lowkiq.integration.calls.masking import CUT
from celery_lowkiq.rules.errors import InvalidCall, StoreError
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import NewJob, QueueSpec
from celery_lowkiq.rules.tracking import NewCall, State, ended_without_run
from celery_lowkiq.store.tracking.tracker_store import latest_due

#: What stores jobs: ``RedisStore.push``, or the same with a tracker.
Push: TypeAlias = Callable[[QueueSpec, list[NewJob], Iterable[float]], None]

#: A payload of more bytes is shown cut.
SHOWN_BYTES = 1024
#: Number of calls that are added to a tracker, and then pushed, at a time.
CHUNK = 1000


@dataclass(frozen=True)
class TrackedPush:
    """Pushes jobs whose calls have the ``task_ids``, after it has added them to a tracker.

    It does so in parts, so that a push which ends half-way leaves few calls that were added in vain. When the
    tracker is cancelled, ``refuse`` has it raise InvalidCall; else the calls end as REVOKED.
    """

    context: AppContext
    tracker: str
    task_ids: Sequence[str]
    refuse: bool

    def __call__(self, queue: QueueSpec, jobs: list[NewJob], intervals: Iterable[float]) -> None:
        left = iter(intervals)
        for start in range(0, len(jobs), CHUNK):
            ids = self.task_ids[start : start + CHUNK]
            part = jobs[start : start + CHUNK]
            #: By its record, which names the call.
            not_stored = {job.record: task_id for job, task_id in zip(part, ids, strict=True)}
            try:
                self._add(queue, ids, part, left)
                self.context.store.push(queue, part, left, partial(_strike, not_stored))
            except InvalidCall:
                raise
            except BaseException as error:
                # All were stored, and yet it failed: none is confirmed.
                self._not_pushed(not_stored.values() or ids, error)
                raise

    def _add(self, queue: QueueSpec, ids: Sequence[str], jobs: list[NewJob], left: Iterable[float]) -> None:
        calls = [
            NewCall(task_id, queue.name, job.id, shown_payload(self.context, job.payload))
            for task_id, job in zip(ids, jobs, strict=True)
        ]
        may_run = self.context.tracker_store.add(self.tracker, calls, latest_due(jobs), left)
        if self.refuse and not may_run:
            raise InvalidCall(f"tracker {self.tracker} was cancelled, and takes no more calls")

    def _not_pushed(self, ids: Iterable[str], error: BaseException) -> None:
        # When Redis did not answer, they may be stored: then their runs correct this.
        text = f"not pushed: {type(error).__name__}: {error}"
        updates = (ended_without_run(self.tracker, task_id, State.FAILED, text) for task_id in ids)
        try:
            self.context.tracker_store.update(updates)
        except StoreError as away:
            logger.warning("tracker %s was not told of calls that were not pushed: %s", self.tracker, away)


def _strike(not_stored: dict[bytes | None, str], jobs: Iterable[NewJob]) -> None:
    for job in jobs:
        not_stored.pop(job.record, None)


def shown_payload(context: AppContext, data: bytes) -> bytes:
    """The part of a payload that a tracker keeps."""
    if len(data) <= SHOWN_BYTES:
        return data
    if data.startswith(MARK):
        return context.record_codec.dump(f"({len(data)} bytes)")
    return context.record_codec.dump(data[: SHOWN_BYTES // 2].decode("utf-8", "ignore") + CUT)
