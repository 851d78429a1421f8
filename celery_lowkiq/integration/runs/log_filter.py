"""Log filter: adds queue, shard and ids to Celery's own line about each run.

It does so as the line is written, so that a disabled level costs nothing. It drops Celery's lines about
failed runs: ``failure_log`` writes one for each job.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery._state import get_current_task
from celery.app import trace
from celery.app.trace import LOG_FAILURE, LOG_RETRY

from celery_lowkiq.rules.models import Batch

from .failure_log import is_logged

#: Celery's logger of how runs end.
TRACE = "celery.app.trace"
_logger = logging.getLogger(TRACE)
#: Maximum number of ids listed per line.
IDS_SHOWN = 5
ABOUT = " queue=%(queue)s shard=%(shard)d jobs=%(jobs)d ids=%(ids)s"
#: Values of a line about a run, which that of a plain run has from the start.
OF_BATCH = frozenset({"queue", "shard", "jobs", "ids"})


class BatchFilter(logging.Filter):
    """Completes Celery's lines about runs, and drops those that ``failure_log`` replaces."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add queue, shard and ids to a line about a run, and the runtime in s where it has none.

        ``record.data`` has the same values.
        """
        about = record.args
        if isinstance(about, dict) and about.keys() >= OF_BATCH:
            # The line of a plain run is whole.
            return True
        task: Any = get_current_task()
        if task is None or not isinstance(about, dict) or about.get("id") != task.request.id:
            return True
        run = getattr(task.request, "lowkiq_run", None)
        failed = record.msg in (LOG_FAILURE, LOG_RETRY) and not about.get("internal")
        if run is not None:
            if failed and _has_lines(run):
                return False
            record.msg = f"{record.msg}{ABOUT}"
            if "runtime" not in about:
                record.msg += " runtime=%(runtime).3fs"
            runtime = time.monotonic() - run.batch.began_at
            record.args = {"runtime": runtime, **about, **describe_batch(run.batch)}
            record.__dict__["data"] = record.args
        elif failed and getattr(task.request, "lowkiq_play", None) is not None:
            return _as_detail(record)
        return True


def _has_lines(run: Any) -> bool:
    failures = run.decision.failures
    return bool(failures) and all(is_logged(failure, run.settings.log_failures) for failure in failures)


def _as_detail(record: logging.LogRecord) -> bool:
    """Make a line about one call of a merged job INFO without a traceback: the job's own line has both.

    Returns whether the line is written.
    """
    record.exc_info = record.exc_text = None
    record.levelno = min(record.levelno, logging.INFO)
    record.levelname = logging.getLevelName(record.levelno)
    return logging.getLogger(record.name).isEnabledFor(record.levelno)


class LoggedIds(list[str]):
    """The first ids of a batch: a list for formatters of ``record.data``; Python literals in a line, which no
    id can break or colour.
    """

    #: Number of ids that it lacks.
    more: int = 0

    def __str__(self) -> str:
        shown = ",".join([repr(job_id) for job_id in self])
        return f"{shown},... ({self.more} more)" if self.more else shown


def describe_batch(batch: Batch) -> dict[str, Any]:
    """The values of a line."""
    jobs = batch.jobs
    ids = LoggedIds([job.id for job in jobs[:IDS_SHOWN]])
    if len(jobs) > IDS_SHOWN:
        ids.more = len(jobs) - IDS_SHOWN
    return {"queue": batch.queue.name, "shard": batch.shard.index, "jobs": len(jobs), "ids": ids}


def plain_success(about: dict[str, Any], batch: Batch) -> tuple[str, dict[str, Any]]:
    """Return Celery's line of a plain run that succeeds, and its values, as the filter completes it."""
    # Read anew: programs replace it, for instance to keep results out of their logs.
    line = trace.LOG_SUCCESS
    if not is_installed():
        return line, about
    return f"{line}{ABOUT}", {**about, **describe_batch(batch)}


def is_installed() -> bool:
    """Whether Celery's logger has the filter."""
    return any(isinstance(each, BatchFilter) for each in _logger.filters)


def install_batch_filter() -> None:
    """Add the filter to Celery's logger, once in a process."""
    if not is_installed():
        _logger.addFilter(BatchFilter())
