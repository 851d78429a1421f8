"""Tells trackers what becomes of the calls of a batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from celery.exceptions import Retry

from celery_lowkiq.integration.app.error_text import said
from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.integration.calls.validation import read_id, read_score
from celery_lowkiq.integration.records.call_record import CallNote
from celery_lowkiq.rules.errors import InvalidCall, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Job
from celery_lowkiq.rules.tracking import News, State, began, ended, ends_without_run, waits
from celery_lowkiq.store.tracking.tracker_store import Tracks

from .endings import Ending
from .outcomes import BusinessFailure

logger = logging.getLogger("celery_lowkiq")

#: So many calls of a batch are told of its progress.
MOST_RUNNING = 1000
#: Progress without a message is told at most once in so many s.
PROGRESS_PAUSE = 0.1


class TrackedCalls:
    """Of one batch, in its lane's thread. Calls without a tracker cost nothing here."""

    def __init__(self, epoch: int, tracks: Tracks, settings: Settings) -> None:
        self._epoch = epoch
        self._tracks = tracks
        self._settings = settings
        #: With the id of the job, what was told at the beginning.
        self._running: list[tuple[str, News]] = []
        self._progressed_at = -PROGRESS_PAUSE

    def begin(self, calls: Iterable[tuple[Job, CallNote, bool]]) -> set[str]:
        """A run is about to begin, which is handed some of the calls. Returns the ids of all of them that
        shall not run any more, since their tracker was cancelled. Raises StoreUnavailable.
        """
        tracked = [(job, note, handed) for job, note, handed in calls if note.tracker]
        begin = [
            (job.id, began(note.tracker, note.id, self._epoch, job.claim))
            for job, note, handed in tracked
            if handed
        ]
        asked = {news.tracker for _, news in begin}
        rest = {note.tracker: note.id for _, note, _ in tracked if note.tracker not in asked}
        cancelled = self._tell([news for _, news in begin] + [waits(*each) for each in rest.items()])
        running = [(job_id, news) for job_id, news in begin if news.tracker not in cancelled]
        self._running += running[: MOST_RUNNING - len(self._running)]
        return {note.id for _, note, _ in tracked if note.tracker in cancelled}

    def _tell(self, news: list[News]) -> set[str]:
        """Trackers that were cancelled."""
        try:
            return self._tracks.tell(news) if news else set()
        except StoreUnavailable:
            raise
        except StoreError as error:
            logger.warning("trackers were not told that calls begin to run: %s", error)
            return set()

    def progress(
        self, text: str, current: float | None, total: float | None, job_id: str | None = None
    ) -> None:
        """The run has got so far, with all its jobs or with one. An error of the store is logged."""
        runs = [news for running_id, news in self._running if job_id in (None, running_id)]
        now = time.monotonic()
        soon = not text and now < self._progressed_at + PROGRESS_PAUSE and current != total
        if not runs or soon:
            return
        self._progressed_at = now
        try:
            self._tracks.progress(runs, text, current, total)
        except StoreError as error:
            logger.warning("a tracker was not told of progress: %s", error)

    def interrupted(self, error: BaseException) -> None:
        """The worker ends in the middle of the run; its jobs run again."""
        text = f"interrupted: {said(self._settings, error)}"
        news = [ended(run, over=False, success=False, text=text) for _, run in self._running]
        try:
            self._tracks.tell(news)
        except StoreError as away:
            logger.warning("trackers were not told that a run was interrupted: %s", away)

    def dropped(self, note: CallNote, reason: str) -> list[News]:
        """A call shall not run any more."""
        return [ends_without_run(note.tracker, note.id, State.FAILED, reason)] if note.tracker else []

    def ended(self, job: Job, note: CallNote, ending: Ending | None, over: bool) -> list[News]:
        """The run of a call has ended; not ``over``: it runs again."""
        if not note.tracker:
            return []
        run = began(note.tracker, note.id, self._epoch, job.claim)
        if ending is None:
            return [run._replace(state=State.ENQUEUED)]
        error = getattr(ending.give, "error", None)
        if isinstance(error, Retry) and isinstance(error.exc, Exception):
            error = error.exc
        business = isinstance(error, BusinessFailure)
        text = "" if error is None else str(error) if business else said(self._settings, error)
        return [ended(run, over, ending.success, business, text)]


def progress_of(text: Any, current: Any, total: Any, job_id: Any) -> Callable[[TrackedCalls], None]:
    """What ``self.progress`` tells, checked. Raises InvalidCall."""
    if not isinstance(text, str):
        raise InvalidCall(f"progress({text!r:.100}): a text is allowed; numbers are current= and total=")
    now, end = read_score(current, None, "current"), read_score(total, None, "total")
    only = None if job_id is None else read_id(job_id)
    return lambda tracked: tracked.progress(text, now, end, only)
