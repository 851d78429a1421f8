"""What the log says of a batch. Celery writes a line for each run already: the queue, the shard and the ids
are added to that as it is written, so that a level that is off costs nothing.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery._state import get_current_task

from celery_lowkiq.rules.models import Batch

#: Celery's logger of how runs end.
TRACE = "celery.app.trace"
#: So many ids are named, the others are counted.
IDS_SHOWN = 5


class BatchFilter(logging.Filter):
    """Lets every record through."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add queue, shard and ids to a line about the run of a batch, and the runtime (s) where it has none;
        the same as values to ``record.data``.
        """
        task: Any = get_current_task()
        run = getattr(task.request, "lowkiq_run", None) if task is not None else None
        about = record.args
        if run is not None and isinstance(about, dict) and about.get("id") == task.request.id:
            record.msg = f"{record.msg} queue=%(queue)s shard=%(shard)d jobs=%(jobs)d ids=%(ids)s"
            if "runtime" not in about:
                record.msg += " runtime=%(runtime).3fs"
            runtime = time.monotonic() - run.batch.began_at
            record.args = {"runtime": runtime, **about, **described(run.batch)}
            record.__dict__["data"] = record.args
        return True


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
