"""Writes the lines about plain runs: without a record each, and without lanes that wait for each other.

A handler of ``logging`` writes under a lock, and a thread that writes gives up the interpreter. So lanes that
log short runs would switch threads twice for each line, which takes longer than the line. Here a lane leaves
its line to one that is writing already, which writes it before it releases the lock. ``record_factory`` makes
the next line of that lane, by any logger, wait for that.
"""

from __future__ import annotations

import logging.handlers
import re
import time
from collections import deque
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

from celery.app import trace
from celery.utils import log

from celery_lowkiq.rules.functions import is_defined_in

from .log_filter import BatchFilter, install_batch_filter

HANDLERS = (logging.StreamHandler, logging.FileHandler, logging.handlers.WatchedFileHandler)
LOGGERS = (logging.Logger, logging.RootLogger)
FORMATTERS = (logging.Formatter, log.ColorFormatter)
#: Fields of a record that are the same for all lines of a millisecond, but for the message.
SHARED = {"asctime", "filename", "funcName", "levelname", "levelno", "lineno", "message", "module", "name"}
SHARED |= {"pathname", "process", "processName"}
#: What a line passes through. Tools replace some of it, as Sentry ``Logger.callHandlers``.
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

    def record(self) -> logging.LogRecord:
        """The record that ``trace.info`` makes."""
        return _record(self.message, self.about)


class _Frame(NamedTuple):
    """What surrounds the text of all lines of a millisecond."""

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
        #: Whether the thread that has the handler's lock will look for waiting lines again.
        self._is_writing = False

    def format(self, line: _Line, text: str) -> str:
        """The whole line with this text."""
        formatter, frame, now = self._handler.formatter, self._frame, time.time()
        form = formatter._style._fmt
        if not _is_shared(form):
            whole = self._handler.format(line.record())
            return f"{whole}{self._handler.terminator}"
        # As LogRecord rounds it.
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
            _writing.add(self)
            # Ends soon: each lane waits for its lines before it settles.
            while self._waiting:
                self._is_writing = True
                self._write([self._waiting.popleft() for _ in range(len(self._waiting))])
                self._is_writing = False
        finally:
            self._is_writing = False
            _writing.discard(self)
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
            # Of one of them, before anything was written.
            pass
        except Exception:  # noqa: BLE001 - logged as by the handler itself
            handler.handleError(lines[0][1].record())
            return
        for _, line in lines:
            handler.emit(line.record())


#: Those that are being written to.
_writing: set[HandlerLines] = set()


def wait_for_lines() -> None:
    """Wait until the lines of this thread are written."""
    if _writing:
        for lines in tuple(_writing):
            lines.wait()


def record_factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """Make a record as ``logging`` does, for a line that comes after those that this thread has left."""
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
    """Those of the handlers of a line; none if all that happens to a line on its way is not known."""
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
    """Whether what the handler does to a line is known."""
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
    """Whether a format has only fields of SHARED, and the message once, as it is."""
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
