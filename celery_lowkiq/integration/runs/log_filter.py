"""What the log says of a batch. Celery writes a line for each run already: the queue, the shard and the ids
are added to that as it is written, so that a level that is off costs nothing. Celery's lines about failed
runs are left out: ``failures`` has better ones.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery._state import get_current_task
from celery.app.trace import LOG_FAILURE, LOG_RETRY

from celery_lowkiq.rules.models import Batch

from .failure_log import is_told

#: Celery's logger of how runs end.
TRACE = "celery.app.trace"
#: So many ids are named, the others are counted.
IDS_SHOWN = 5


class BatchFilter(logging.Filter):
    """Completes Celery's lines about runs, and leaves out those that say again what another line says."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add queue, shard and ids to a line about the run of a batch, and the runtime (s) where it has none;
        the same as values to ``record.data``.
        """
        task: Any = get_current_task()
        about = record.args
        if task is None or not isinstance(about, dict) or about.get("id") != task.request.id:
            return True
        run = getattr(task.request, "lowkiq_run", None)
        failed = record.msg in (LOG_FAILURE, LOG_RETRY) and not about.get("internal")
        if run is not None:
            if failed and _is_told_of(run):
                return False
            record.msg = f"{record.msg} queue=%(queue)s shard=%(shard)d jobs=%(jobs)d ids=%(ids)s"
            if "runtime" not in about:
                record.msg += " runtime=%(runtime).3fs"
            runtime = time.monotonic() - run.batch.began_at
            record.args = {"runtime": runtime, **about, **described(run.batch)}
            record.__dict__["data"] = record.args
        elif failed and getattr(task.request, "lowkiq_ending", None) is not None:
            return _as_detail(record)
        return True


def _is_told_of(run: Any) -> bool:
    """Whether each job that failed has a line of ours."""
    failures = run.failures
    return bool(failures) and all(is_told(failure, run.log_failures) for failure in failures)


def _as_detail(record: logging.LogRecord) -> bool:
    """Make a line about one call of a merged job INFO without a traceback: the job's own line has both.
    Returns whether it is written.
    """
    record.exc_info = record.exc_text = None
    record.levelno = min(record.levelno, logging.INFO)
    record.levelname = logging.getLevelName(record.levelno)
    return logging.getLogger(record.name).isEnabledFor(record.levelno)


def described(batch: Batch) -> dict[str, Any]:
    """The words of a line: ids as Python writes them, so that none can end the line or colour it."""
    named = [job.id for job in batch.jobs[:IDS_SHOWN]]
    more = len(batch.jobs) - len(named)
    shown = ",".join(map(repr, named))
    return {
        "queue": batch.queue.name,
        "shard": batch.shard.index,
        "jobs": len(batch.jobs),
        "ids": f"{shown},... ({more} more)" if more else shown,
    }


def tell_of_batches() -> None:
    """From now on, in this process."""
    logger = logging.getLogger(TRACE)
    if not any(isinstance(known, BatchFilter) for known in logger.filters):
        logger.addFilter(BatchFilter())
