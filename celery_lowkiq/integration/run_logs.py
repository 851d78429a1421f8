"""Log lines of runs and failures."""

from __future__ import annotations

import logging
import logging.handlers
import re
import time
from collections import deque
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

from celery._state import get_current_task
from celery.app import trace
from celery.app.trace import LOG_FAILURE, LOG_RETRY
from celery.utils import log

from celery_lowkiq.integration.decisions import JobDecision
from celery_lowkiq.integration.run import Run
from celery_lowkiq.rules.basics import is_defined_in, monotonic
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.rules.text import escaped, moment, shortened

# Logs failed jobs: a line for each, with the traceback of a new error.
#
# The lines replace Celery's own about the same run, which know neither jobs nor retries: see ``BatchFilter``.

#: Celery's logger of how runs end.
logger: logging.Logger = logging.getLogger("celery.app.trace")

#: Maximum number of lines, and of tracebacks of different errors, for one run.
MOST_JOBS, MOST_TRACEBACKS = 100, 5
#: Maximum length of an error in a line.
MOST_CHARACTERS = 500

_ABOUT = " queue=%(queue)s shard=%(shard)d id=%(job_id)s runtime=%(runtime).3fs"
_RETRIED = "Task %(name)s[%(id)s] failed, retry %(retry)d at %(next)s: %(exc)s" + _ABOUT
_DIED = "Task %(name)s[%(id)s] died, its payload is in the morgue: %(exc)s" + _ABOUT


def is_logged(failure: JobDecision) -> bool:
    """True if the failure has a line."""
    return failure.dies or not failure.is_requested


def log_failures(run: Run) -> None:
    """Log the failures of a run: deaths at ERROR, others at WARNING, and errors that the task ``throws`` at
    INFO, without a traceback.
    """
    expected = tuple(run.task.throws or ())
    found = [failure for failure in run.decision.failures if is_logged(failure)]
    found.sort(key=lambda failure: not failure.dies)
    shown: set[str] = set()
    for failure in found[:MOST_JOBS]:
        is_expected = isinstance(failure.error, expected)
        level = logging.INFO if is_expected else logging.ERROR if failure.dies else logging.WARNING
        if not logger.isEnabledFor(level):
            continue
        line, context = _DIED if failure.dies else _RETRIED, _context(run, failure)
        is_new = not is_expected and (failure.dies or failure.job.retry_count < 0)
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
        "runtime": monotonic() - run.batch.began_at,
    }


# Log filter: adds queue, shard and ids to Celery's own line about each run.
#
# It does so as the line is written, so that a disabled level costs nothing. It drops Celery's lines about
# failed runs: ``log_failures`` writes one for each job.

#: Maximum number of ids listed per line.
IDS_SHOWN = 5
ABOUT = " queue=%(queue)s shard=%(shard)d jobs=%(jobs)d ids=%(ids)s"
#: Values of a line about a run, which that of a plain run has from the start.
OF_BATCH = frozenset({"queue", "shard", "jobs", "ids"})


class BatchFilter(logging.Filter):
    """Completes Celery's lines about runs, and drops those that ``log_failures`` replaces."""

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
            runtime = monotonic() - run.batch.began_at
            record.args = {"runtime": runtime, **about, **describe_batch(run.batch)}
            record.__dict__["data"] = record.args
        elif failed and getattr(task.request, "lowkiq_play", None) is not None:
            return _as_detail(record)
        return True


def _has_lines(run: Any) -> bool:
    failures = run.decision.failures
    return bool(failures) and all(map(is_logged, failures))


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
    """True if Celery's logger has the filter."""
    return any(isinstance(each, BatchFilter) for each in logger.filters)


def install_batch_filter() -> None:
    """Add the filter to Celery's logger, once in a process."""
    if not is_installed():
        logger.addFilter(BatchFilter())


# Writes the lines about plain runs: without a record each, and without lanes that wait for each other.
#
# A handler of ``logging`` writes under a lock, and a thread that writes gives up the interpreter. So lanes
# that log short runs would switch threads twice for each line, which takes longer than the line. Here a
# lane leaves its line to one that is writing already, which writes it before it releases the lock.
# ``record_factory`` makes the next line of that lane, by any logger, wait for that.

HANDLERS = (logging.StreamHandler, logging.FileHandler, logging.handlers.WatchedFileHandler)
LOGGERS = (logging.Logger, logging.RootLogger)
FORMATTERS = (logging.Formatter, log.ColorFormatter)
#: Fields of a record that are the same for all lines of a millisecond, but for the message.
SHARED = {"asctime", "filename", "funcName", "levelname", "levelno", "lineno", "message", "module", "name"}
SHARED |= {"pathname", "process", "processName"}
#: Functions that a line passes through. Tools replace some of them, as Sentry ``Logger.callHandlers``.
_modules = SimpleNamespace(logging=logging, trace=trace, log=log)
_steps = attrgetter(
    *("trace.info", "log.ColorFormatter.format"),
    *(
        f"logging.Logger.{name}"
        for name in ("info", "_log", "makeRecord", "handle", "filter", "callHandlers")
    ),
    *(f"logging.Handler.{name}" for name in ("handle", "filter", "format")),
    *(f"logging.StreamHandler.{name}" for name in ("emit", "flush")),
    *("logging.FileHandler.emit", "logging.handlers.WatchedFileHandler.emit", "logging.Formatter.format"),
)
_ORIGINAL = _steps(_modules)
_IS_ORIGINAL = all(is_defined_in(step, logging, logging.handlers, trace, log) for step in _ORIGINAL)
#: Name of an attribute of a handler: its HandlerLines.
_LINES = "_lowkiq_lines"
#: Stands for the text of a line.
_TEXT = "\0"


class _Line(NamedTuple):
    message: str
    about: dict[str, Any]


class _Frame(NamedTuple):
    """The formatted text around the messages of a millisecond."""

    millisecond: int
    formatter: logging.Formatter
    format: str
    before: str
    after: str


class HandlerLines:
    """Lines on their way to the stream of a handler."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._frame: _Frame | None = None
        self._waiting: deque[tuple[str, _Line]] = deque()
        #: True if the thread that has the handler's lock will look for waiting lines again.
        self._is_writing = False

    def format(self, line: _Line, text: str) -> str:
        """The whole line with this text."""
        formatter, frame, now = self._handler.formatter, self._frame, time.time()
        form = formatter._style._fmt
        if not _is_shared(form):
            whole = self._handler.format(_record(*line))
            return f"{whole}{self._handler.terminator}"
        # Rounded as in LogRecord.
        millisecond = int(now) * 1000 + int((now - int(now)) * 1000)
        if frame is None or frame[:3] != (millisecond, formatter, form):
            before, _, after = self._handler.format(_record(_TEXT)).partition(_TEXT)
            frame = self._frame = _Frame(millisecond, formatter, form, before, after)
        return f"{frame.before}{text}{frame.after}{self._handler.terminator}"

    def add(self, whole: str, line: _Line) -> None:
        """Write a line, or leave it to the thread that writes now."""
        lock = self._handler.lock
        self._waiting.append((whole, line))
        if not lock.acquire(blocking=False):
            if self._is_writing:
                return
            lock.acquire()
        try:
            being_written.add(self)
            # Ends soon: each lane waits for its lines before it settles.
            while self._waiting:
                self._is_writing = True
                self._write([self._waiting.popleft() for _ in range(len(self._waiting))])
                self._is_writing = False
        finally:
            self._is_writing = False
            being_written.discard(self)
            lock.release()

    def wait(self) -> None:
        """Wait until the lines that were added before are written."""
        with self._handler.lock:
            pass

    def _write(self, lines: list[tuple[str, _Line]]) -> None:
        handler = self._handler
        try:
            if isinstance(handler, logging.handlers.WatchedFileHandler):
                handler.reopenIfNeeded()
            handler.stream.write("".join([whole for whole, _ in lines]))
            handler.stream.flush()
            return
        except UnicodeError:
            # An error of one handler, before anything was written.
            pass
        except Exception:  # noqa: BLE001 - logged as by the handler itself
            handler.handleError(_record(*lines[0][1]))
            return
        for _, line in lines:
            handler.emit(_record(*line))


#: Lines whose handlers are being written to.
being_written: set[HandlerLines] = set()


def wait_for_lines() -> None:
    """Wait until the lines of this thread are written."""
    for lines in tuple(being_written):
        lines.wait()


def record_factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """Make a record as ``logging`` does, for a line that comes after those that this thread has left."""
    if being_written:
        wait_for_lines()
    return logging.LogRecord(*args, **kwargs)


def set_up_log() -> None:
    """Install the filter, and the factory unless the process has another one: then ``logging`` writes all."""
    install_batch_filter()
    if logging.getLogRecordFactory() is logging.LogRecord:
        logging.setLogRecordFactory(record_factory)


def log_success(message: str, about: dict[str, Any]) -> None:
    """Log Celery's line of a plain run, as ``trace.info`` does."""
    found = _lines_of(trace.logger)
    try:
        text = message % about if found else ""
        line = _Line(message, about)
        wholes = [lines.format(line, text) for lines in found]
    except Exception:  # noqa: BLE001 - logging says what is wrong with it
        wholes = []
    if not wholes:
        trace.info(message, about)
    for lines, whole in zip(found, wholes, strict=False):
        lines.add(whole, line)


def _lines_of(logger: logging.Logger) -> list[HandlerLines]:
    """Return the writers of the logger's handlers; empty if a handler or filter is not a known one."""
    if not (
        _IS_ORIGINAL
        and _steps(_modules) == _ORIGINAL
        and logging.getLogRecordFactory() is record_factory
        and [type(each) for each in logger.filters] == [BatchFilter]
        and logger.isEnabledFor(logging.INFO)
    ):
        return []
    found: list[HandlerLines] = []
    each: logging.Logger | None = logger
    while each is not None:
        if type(each) not in LOGGERS:
            return []
        for handler in each.handlers:
            # kombu gives one to each logger, for programs that set no logging up.
            if handler.level <= logging.INFO and type(handler) is not logging.NullHandler:
                if not _is_known(handler):
                    return []
                own = vars(handler)
                found.append(own.get(_LINES) or own.setdefault(_LINES, HandlerLines(handler)))
        each = each.parent if each.propagate else None
    return found


def _is_known(handler: Any) -> bool:
    """True if the handler only formats a line and writes it to its stream."""
    own = vars(handler)
    return (
        type(handler) in HANDLERS
        and type(handler.formatter) in FORMATTERS
        and type(handler.formatter._style) is logging.PercentStyle
        and not handler.filters
        and None not in (handler.stream, handler.lock)
        and own.keys().isdisjoint(("emit", "handle", "format", "filter"))
    )


@lru_cache
def _is_shared(form: str) -> bool:
    """True if a format has only fields of SHARED, and the message once, as it is."""
    names = re.findall(r"%\((\w*)\)", form)
    once = names.count("message") == form.count("%(message)s") == 1
    return once and SHARED.issuperset(names) and "%%" not in form and _TEXT not in form


def _record(message: str, *args: Any) -> logging.LogRecord:
    """The record that ``trace.info`` makes."""
    code = trace.info.__code__
    number = max(line for *_, line in code.co_lines() if line)
    record = logging.LogRecord(
        trace.logger.name, logging.INFO, code.co_filename, number, message, args, None, code.co_name
    )
    vars(record)["data"] = record.args
    return record
