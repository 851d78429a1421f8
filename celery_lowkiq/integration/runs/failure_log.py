"""Logs failed jobs: a line for each, with the traceback of a new error.

The lines replace Celery's own about the same run, which know neither jobs nor retries: see ``log_filter``.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery_lowkiq.rules.text import escaped, moment, shortened

from .decisions import JobDecision
from .run import Run

#: Celery's logger of how runs end.
logger: logging.Logger = logging.getLogger("celery.app.trace")

#: ``lowkiq_log_failures``.
FIRST, ALL, DEATH = "first", "all", "death"
#: Maximum number of lines, and of tracebacks of different errors, for one run.
MOST_JOBS, MOST_TRACEBACKS = 100, 5
#: Maximum length of an error in a line.
MOST_CHARACTERS = 500

_ABOUT = " queue=%(queue)s shard=%(shard)d id=%(job_id)s runtime=%(runtime).3fs"
_RETRIED = "Task %(name)s[%(id)s] failed, retry %(retry)d at %(next)s: %(exc)s" + _ABOUT
_DIED = "Task %(name)s[%(id)s] died, its payload is in the morgue: %(exc)s" + _ABOUT


def is_logged(failure: JobDecision, which: str) -> bool:
    """Whether the failure has a line; ``which`` is ``lowkiq_log_failures``."""
    return failure.dies or not (which == DEATH or failure.is_requested)


def log_failures(run: Run) -> None:
    """Log the failures of a run: deaths at ERROR, others at WARNING, and errors that the task ``throws`` at
    INFO, without a traceback.
    """
    which, expected = run.settings.log_failures, tuple(run.task.throws or ())
    found = [failure for failure in run.decision.failures if is_logged(failure, which)]
    found.sort(key=lambda failure: not failure.dies)
    shown: set[str] = set()
    for failure in found[:MOST_JOBS]:
        is_expected = isinstance(failure.error, expected)
        level = logging.INFO if is_expected else logging.ERROR if failure.dies else logging.WARNING
        if not logger.isEnabledFor(level):
            continue
        line, context = _DIED if failure.dies else _RETRIED, _context(run, failure)
        is_new = not is_expected and (failure.dies or which == ALL or failure.job.retry_count < 0)
        traceback = failure.text.traceback if is_new else ""
        if traceback and traceback not in shown and len(shown) < MOST_TRACEBACKS:
            shown.add(traceback)
            context["traceback"] = traceback
            line += "\n%(traceback)s"
        # In ``record.data``, as Celery has it, for the user's handlers.
        logger.log(level, line, context, extra={"data": context})
    if len(found) > MOST_JOBS:
        more = len(found) - MOST_JOBS
        logger.warning("Task %s[%s]: %d more jobs failed", run.task.name, run.task_id, more)


class LoggedId(str):
    """An id: as it is for formatters of ``record.data``; in a line a literal, so that it forges none."""

    __slots__ = ()

    def __str__(self) -> str:
        return repr(self)


def _context(run: Run, failure: JobDecision) -> dict[str, Any]:
    """The values of a line. A death has no next try."""
    settlement, shard = failure.settlement, run.batch.shard
    at = settlement.perform_in or time.time() + settlement.delay
    again = {} if failure.dies else {"retry": settlement.retry_count + 1, "next": moment(at)}
    return {
        "id": run.task_id,
        "name": run.task.name,
        "exc": escaped(shortened(failure.text.line, MOST_CHARACTERS)),
        "queue": shard.queue,
        "shard": shard.index,
        "job_id": LoggedId(failure.job.id),
        "retry_count": settlement.retry_count,
        **again,
        "runtime": time.monotonic() - run.batch.began_at,
    }
