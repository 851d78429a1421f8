"""What an ordered task offers for tracked calls: ``task.track`` and ``self.progress``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_lowkiq.integration.calls.validation import BulkEntry, read_id, read_score
from celery_lowkiq.integration.tracking.tracker import Tracker, track
from celery_lowkiq.rules.errors import InvalidCall


class TrackingMixin:
    """Methods of an ordered task that open a tracker, or report to one."""

    def track(self: Any, jobs: Iterable[BulkEntry], name: str | None = None) -> Tracker:
        """Store many calls, as :meth:`perform_async`, in a tracker of their own. Raises InvalidCall."""
        with track(name or self.name, self._get_app()) as tracker:
            self.perform_async(jobs, tracker=tracker)
        return tracker

    def progress(
        self: Any, text: str = "", current: Any = None, total: Any = None, job_id: Any = None
    ) -> None:
        """Report the progress of the run to the trackers of its calls; ``job_id``: of this job's calls only.

        Without a tracker it does nothing. A text is kept among the call's messages; at most ten reports a
        second without a text are sent. Raises InvalidCall for a wrong type of any argument.
        """
        progress = read_progress(text, current, total, job_id)
        run = getattr(self.request, "lowkiq_run", None)
        if run is not None and run.tracked is not None:
            run.tracked.progress(*progress)


def read_progress(
    text: Any, current: Any, total: Any, job_id: Any
) -> tuple[str, float | None, float | None, str | None]:
    """The checked arguments of ``self.progress``. Raises InvalidCall."""
    if not isinstance(text, str):
        raise InvalidCall(
            f"progress({text!r:.100}) is invalid: expected a text. Pass numbers as current= and total="
        )
    only = None if job_id is None else read_id(job_id)
    return text, read_score(current, None, "current"), read_score(total, None, "total"), only
