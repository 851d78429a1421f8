"""What the log says of jobs that failed: a line for each, with the traceback where it is news.

The lines stand in for Celery's own of the same run, see ``log_lines``: these know neither jobs nor retries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.exceptions import Retry

from celery_lowkiq.integration.app.error_text import ErrorText
from celery_lowkiq.rules.models import Fate, Job, Verdict
from celery_lowkiq.rules.text import escaped, moment, shortened

if TYPE_CHECKING:
    from .run import Run

#: Celery's logger of how runs end.
logger = logging.getLogger("celery.app.trace")

#: ``lowkiq_log_failures``.
FIRST, ALL, DEATH = "first", "all", "death"
#: Of one run, so many jobs have a line, and so many different errors a traceback.
MOST_JOBS, MOST_TRACEBACKS = 100, 5
#: Characters of an error in a line.
SAID = 500

_ABOUT = " queue=%(queue)s shard=%(shard)d id=%(job_id)s runtime=%(runtime).3fs"
_RETRIED = "Task %(name)s[%(id)s] failed, retry %(retry)d at %(next)s: %(exc)s" + _ABOUT
_DIED = "Task %(name)s[%(id)s] died, its payload is in the morgue: %(exc)s" + _ABOUT


class Failure(NamedTuple):
    """A job whose run failed, and what becomes of it."""

    job: Job
    verdict: Verdict
    error: Exception
    text: ErrorText

    @property
    def dies(self) -> bool:
        """Whether a payload of it is in the morgue now."""
        return self.verdict.fate in (Fate.DIE, Fate.BURY)

    @property
    def asked(self) -> bool:
        """Whether the function asked to run again, and named no error: that is no news."""
        return isinstance(self.error, Retry) and not self.dies


def is_told(failure: Failure, which: str) -> bool:
    """Whether it has a line of ours; ``which`` is ``lowkiq_log_failures``."""
    return failure.dies or not (which == DEATH or failure.asked)


def log_failures(run: Run, name: str, expected: Sequence[type[BaseException]]) -> None:
    """Log the failures of a run of the task ``name``: deaths at ERROR, others at WARNING, and what the task
    says is ``expected`` (its ``throws``) at INFO, without a traceback.
    """
    found = [failure for failure in run.failures if is_told(failure, run.log_failures)]
    found.sort(key=lambda failure: not failure.dies)
    told: set[str] = set()
    for failure in found[:MOST_JOBS]:
        level = _level(failure, expected)
        if not logger.isEnabledFor(level):
            continue
        way = failure.text.traceback
        shows = level > logging.INFO and _is_news(failure, run.log_failures)
        if shows and way not in told and len(told) < MOST_TRACEBACKS:
            told.add(way)
        else:
            way = ""
        _log(level, failure, _context(run, name, failure), way)
    if len(found) > MOST_JOBS:
        logger.warning("Task %s[%s]: %d more jobs failed", name, run.task_id, len(found) - MOST_JOBS)


def _level(failure: Failure, expected: Iterable[type[BaseException]]) -> int:
    if isinstance(failure.error, tuple(expected)):
        return logging.INFO
    return logging.ERROR if failure.dies else logging.WARNING


def _is_news(failure: Failure, which: str) -> bool:
    return failure.dies or which == ALL or failure.job.retry_count < 0


def _context(run: Run, name: str, failure: Failure) -> dict[str, Any]:
    """The words of a line; ids as Python writes them, so that none can end the line or colour it."""
    verdict, shard = failure.verdict, run.batch.shard
    at = verdict.perform_in or time.time() + verdict.delay
    return {
        "id": run.task_id,
        "name": name,
        "exc": escaped(shortened(failure.text.line, SAID)),
        "queue": shard.queue,
        "shard": shard.index,
        "job_id": repr(failure.job.id),
        "retry_count": verdict.retry_count,
        "retry": verdict.retry_count + 1,
        "next": moment(at),
        "runtime": time.monotonic() - run.batch.began_at,
    }


def _log(level: int, failure: Failure, context: dict[str, Any], way: str) -> None:
    """As Celery logs, with the words in ``record.data`` for handlers of one's own."""
    line = _DIED if failure.dies else _RETRIED
    if way:
        context["traceback"] = way
        line += "\n%(traceback)s"
    logger.log(level, line, context, extra={"data": context})
