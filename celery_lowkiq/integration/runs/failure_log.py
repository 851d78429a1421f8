"""Logs failed jobs: a line for each, with the traceback of a new error.

The lines replace Celery's own about the same run, which know neither jobs nor retries: see ``log_filter``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from celery_lowkiq.rules.text import escaped, moment, shortened

from .decisions import Failure
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


def is_logged(failure: Failure, which: str) -> bool:
    """Whether the failure has a line; ``which`` is ``lowkiq_log_failures``."""
    return failure.dies or not (which == DEATH or failure.is_requested)


def log_failures(
    run: Run, failures: Iterable[Failure], name: str, expected: Sequence[type[BaseException]]
) -> None:
    """Log the failures of a run of the task ``name``: deaths at ERROR, others at WARNING, and errors that are
    ``expected`` (the task's ``throws``) at INFO, without a traceback.
    """
    which = run.settings.log_failures
    found = [failure for failure in failures if is_logged(failure, which)]
    found.sort(key=lambda failure: not failure.dies)
    shown: set[str] = set()
    for failure in found[:MOST_JOBS]:
        level = _level(failure, expected)
        if not logger.isEnabledFor(level):
            continue
        traceback = failure.text.traceback
        shows = level > logging.INFO and _is_news(failure, which)
        if shows and traceback not in shown and len(shown) < MOST_TRACEBACKS:
            shown.add(traceback)
        else:
            traceback = ""
        _log(level, failure, _context(run, name, failure), traceback)
    if len(found) > MOST_JOBS:
        logger.warning("Task %s[%s]: %d more jobs failed", name, run.task_id, len(found) - MOST_JOBS)


def _level(failure: Failure, expected: Iterable[type[BaseException]]) -> int:
    if isinstance(failure.error, tuple(expected)):
        return logging.INFO
    return logging.ERROR if failure.dies else logging.WARNING


def _is_news(failure: Failure, which: str) -> bool:
    return failure.dies or which == ALL or failure.job.retry_count < 0


def _context(run: Run, name: str, failure: Failure) -> dict[str, Any]:
    """The values of a line. An id is a Python literal, so that it cannot break or colour the line."""
    verdict, shard = failure.verdict, run.batch.shard
    at = verdict.perform_in or time.time() + verdict.delay
    return {
        "id": run.task_id,
        "name": name,
        "exc": escaped(shortened(failure.text.line, MOST_CHARACTERS)),
        "queue": shard.queue,
        "shard": shard.index,
        "job_id": repr(failure.job.id),
        "retry_count": verdict.retry_count,
        "retry": verdict.retry_count + 1,
        "next": moment(at),
        "runtime": time.monotonic() - run.batch.began_at,
    }


def _log(level: int, failure: Failure, context: dict[str, Any], traceback: str) -> None:
    """Log as Celery does, with the values in ``record.data`` for the user's handlers."""
    line = _DIED if failure.dies else _RETRIED
    if traceback:
        context["traceback"] = traceback
        line += "\n%(traceback)s"
    logger.log(level, line, context, extra={"data": context})
