"""Reports to trackers what becomes of the calls of a batch."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from celery.exceptions import Retry

from celery_lowkiq.integration.app.error_text import said
from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.integration.records.call_record import CallRecord
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import Job, Lease
from celery_lowkiq.rules.tracking import State, TrackerUpdate, began, ended, waits
from celery_lowkiq.store.tracking.tracker_store import TrackerStore

from .outcomes import BusinessFailure, CallOutcome

#: Maximum number of calls of a batch to which its progress is reported.
MOST_RUNNING = 1000
#: Minimum interval in s between two reports of progress without a text.
PROGRESS_INTERVAL = 0.1


class TrackedCalls:
    """The tracked calls of one batch, in its lane's thread. Calls without a tracker cost nothing here."""

    def __init__(self, lease: Lease, tracker_store: TrackerStore, settings: Settings) -> None:
        self._lease = lease
        self._tracker_store = tracker_store
        self._settings = settings
        #: The report of each run that began, with the id of its job.
        self._running: list[tuple[str, TrackerUpdate]] = []
        self._progressed_at = -PROGRESS_INTERVAL

    def begin(self, calls: Iterable[tuple[Job, CallRecord, bool]]) -> set[str]:
        """Report the beginning of a run. ``calls``: each with its job, and whether it is part of the run.

        Returns the ids of all calls whose tracker is cancelled: they must not run. Raises StoreUnavailable.
        """
        tracked = [(job, record, included) for job, record, included in calls if record.tracker]
        begin = [(job.id, self._began(job, record)) for job, record, included in tracked if included]
        running_in = {news.tracker for _, news in begin}
        rest = {record.tracker: record.id for _, record, _ in tracked if record.tracker not in running_in}
        cancelled = self._report([news for _, news in begin] + [waits(*each) for each in rest.items()])
        running = [(job_id, news) for job_id, news in begin if news.tracker not in cancelled]
        self._running += running[: MOST_RUNNING - len(self._running)]
        return {record.id for _, record, _ in tracked if record.tracker in cancelled}

    def _began(self, job: Job, record: CallRecord) -> TrackerUpdate:
        lease = self._lease
        return began(record.tracker, record.id, lease.epoch, job.claim, lease.shard.index)

    def _report(self, news: list[TrackerUpdate]) -> set[str]:
        """Returns the trackers that are cancelled."""
        try:
            return self._tracker_store.update(news) if news else set()
        except StoreUnavailable:
            raise
        except StoreError as error:
            logger.warning("the beginning of a run was not reported to trackers: %s", error)
            return set()

    def progress(
        self, text: str, current: float | None, total: float | None, job_id: str | None = None
    ) -> None:
        """Report the progress of all jobs of the run, or of one. Logs an error of the store."""
        runs = [news for running_id, news in self._running if job_id in (None, running_id)]
        now = time.monotonic()
        soon = not text and now < self._progressed_at + PROGRESS_INTERVAL and current != total
        if not runs or soon:
            return
        self._progressed_at = now
        try:
            self._tracker_store.progress(runs, text, current, total)
        except StoreError as error:
            logger.warning("progress was not reported to a tracker: %s", error)

    def interrupted(self, error: BaseException, secrets: Collection[str] = ()) -> None:
        """Report that the worker ends during the run: its jobs run again. ``secrets``: see ``ended``."""
        text = f"interrupted: {said(self._settings, error, secrets)}"
        news = [ended(run, over=False, success=False, text=text) for _, run in self._running]
        try:
            self._tracker_store.update(news)
        except StoreError as away:
            logger.warning("the interruption of a run was not reported to trackers: %s", away)

    def ended(
        self,
        job: Job,
        record: CallRecord,
        outcome: CallOutcome | None,
        over: bool,
        secrets: Collection[str] = (),
    ) -> list[TrackerUpdate]:
        """The report of a call whose run has ended; not ``over``: the call runs again.

        ``secrets``: values of the payloads, which are masked in the text of an error.
        """
        if not record.tracker:
            return []
        run = self._began(job, record)
        if outcome is None:
            return [run._replace(state=State.ENQUEUED)]
        error = outcome.error
        if isinstance(error, Retry) and isinstance(error.exc, Exception):
            error = error.exc
        business = isinstance(error, BusinessFailure)
        text = "" if error is None else said(self._settings, error, secrets)
        if business:
            text = self._settings.redactor.text(str(error), secrets)
        return [ended(run, over, outcome.success, business, text)]
