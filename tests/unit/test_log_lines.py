"""Lines about plain runs: the bytes that ``logging`` writes, in the same order, without a wait for lanes."""

from __future__ import annotations

import io
import logging
import logging.handlers
import threading
from contextlib import contextmanager
from unittest import mock

import celery
import pytest
from celery.app import trace
from celery.app.log import TaskFormatter
from celery.utils.log import ColorFormatter
from hypothesis import given
from hypothesis import strategies as st

from celery_lowkiq.integration import run_logs
from celery_lowkiq.integration.run_logs import ABOUT, BatchFilter, log_success, record_factory, wait_for_lines
from tests.waiting import eventually

CELERY = logging.getLogger("celery")
FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"
FORMATS = [
    FORMAT,
    "%(asctime)s %(name)s %(module)s:%(lineno)d %(funcName)s %(process)d - %(message)s",
    "%(message)s",
    "%(message)s|%(message)s",
    "%(message)-300s %(levelname)8s",
    "%%(message)s",
    "%(threadName)s %(message)s",
    "%(args)s %(message)s",
    "%(unknown)s %(message)s",
    "\0 %(message)s \0",
]
MESSAGES = [trace.LOG_SUCCESS + ABOUT, trace.LOG_SUCCESS, "100 %% of %(name)s", "%(missing)s", "plain"]


class Own(logging.Formatter):
    """A user's."""

    def format(self, record):
        return f"own {record.getMessage()} {sorted(record.data)}"


FORMATTERS = [
    *(lambda form=form: ColorFormatter(form, use_color=False) for form in FORMATS),
    *(lambda form=form: logging.Formatter(form) for form in FORMATS[:3]),
    # ColorFormatter of an older Celery has no datefmt.
    *([lambda: ColorFormatter(FORMAT, datefmt="%H:%M")] if celery.VERSION >= (5, 7) else []),
    lambda: ColorFormatter(FORMAT),
    lambda: logging.Formatter("{asctime} {message}", style="{"),
    lambda: TaskFormatter("%(task_id)s %(message)s"),
    Own,
    lambda: None,
]


class Shouting(logging.StreamHandler):
    """A user's."""

    def emit(self, record):
        self.stream.write(f"{record.msg.upper()}\n")


HANDLERS = [
    lambda stream: logging.StreamHandler(stream),
    lambda stream: logging.StreamHandler(stream),
    Shouting,
    lambda stream: logging.handlers.MemoryHandler(1, target=logging.StreamHandler(stream)),
    lambda stream: logging.NullHandler(),
]
TEXTS = st.text(st.characters(codec="utf-8")) | st.just("\udc80 no character") | st.just("100 %s %(x)s")


def about(**given):
    found = {"id": "i", "name": "t", "runtime": 0.25, "return_value": "None", "args": "()", "kwargs": "{}"}
    return {**found, "queue": "q", "shard": 1, "jobs": 1, "ids": "'1'", **given}


class Stream(io.TextIOWrapper):
    """A file in memory."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    @property
    def written(self):
        self.flush()
        return self.buffer.getvalue().decode()


def handler_on(stream, form=FORMAT):
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ColorFormatter(form, use_color=False))
    return handler


@contextmanager
def logging_to(*handlers, factory=record_factory):
    """Celery's logger has these handlers, as a worker's root logger has."""
    before, log_factory = CELERY.level, logging.getLogRecordFactory()
    logging.setLogRecordFactory(factory)
    CELERY.setLevel(logging.INFO)
    with (
        mock.patch.object(CELERY, "handlers", list(handlers)),
        mock.patch.object(CELERY, "propagate", False),
        mock.patch.object(trace.logger, "filters", [BatchFilter()]),
    ):
        try:
            yield
        finally:
            logging.setLogRecordFactory(log_factory)
            CELERY.setLevel(before)


@pytest.fixture
def added(monkeypatch):
    """The lines that did not go through ``logging``."""
    found, add = [], run_logs.HandlerLines.add

    def note(lines, whole, line):
        found.append(whole)
        add(lines, whole, line)

    monkeypatch.setattr(run_logs.HandlerLines, "add", note)
    return found


@given(
    st.lists(st.tuples(st.sampled_from(HANDLERS), st.sampled_from(FORMATTERS)), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(MESSAGES), TEXTS), min_size=1, max_size=4),
    st.floats(1e9, 2e9),
    st.sampled_from([0.0, 0.0004, 1.0]),
)
def test_a_log_has_the_bytes_that_logging_writes(kinds, lines, began, step):
    def written(log):
        streams = [Stream() for _ in kinds]
        handlers = [make(stream) for (make, _), stream in zip(kinds, streams, strict=True)]
        for handler, (_, formatter) in zip(handlers, kinds, strict=True):
            handler.setFormatter(formatter())
        errors = io.StringIO()
        # Records have their time from time(), and since Python 3.13 from time_ns().
        clock = mock.patch("time.time"), mock.patch("time.time_ns")
        with logging_to(*handlers), mock.patch("sys.stderr", errors), clock[0] as now, clock[1] as now_ns:
            for number, (message, result) in enumerate(lines):
                now.return_value = began + number * step
                now_ns.return_value = int(now.return_value * 1e9)
                log(message, about(return_value=result))
        kinds_of_errors = [line for line in errors.getvalue().splitlines() if "Error: " in line]
        return [stream.written for stream in streams], kinds_of_errors

    assert written(log_success) == written(trace.info)


def test_a_record_is_made_as_celerys(added):
    """With a format that needs one."""
    seen = []

    def note(record):
        seen.append({**vars(record), "created": 0, "msecs": 0, "relativeCreated": 0})
        return True

    handler = handler_on(Stream())
    handler.addFilter(note)
    message, values = MESSAGES[0], about()
    with logging_to(handler):
        trace.info(message, values)
    line = vars(run_logs._record(message, values))
    assert {**line, "created": 0, "msecs": 0, "relativeCreated": 0} == seen[0]


def test_a_usual_line_takes_the_short_way(added):
    with logging_to(handler_on(Stream()), logging.NullHandler()):
        log_success(MESSAGES[0], about())
    assert len(added) == 1


def unknown_filter(handler, monkeypatch):
    handler.addFilter(lambda record: False)


def another_emit(handler, monkeypatch):
    handler.emit = lambda record: None


def another_factory(handler, monkeypatch):
    logging.setLogRecordFactory(logging.LogRecord)


def as_sentry(handler, monkeypatch):
    call = logging.Logger.callHandlers
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda logger, record: call(logger, record))


def as_caplog(handler, monkeypatch):
    CELERY.handlers.append(logging.handlers.BufferingHandler(10))


def filter_of_the_logger(handler, monkeypatch):
    trace.logger.addFilter(lambda record: True)


def too_high(handler, monkeypatch):
    CELERY.setLevel(logging.WARNING)


def other_info(handler, monkeypatch):
    monkeypatch.setattr(trace, "info", lambda message, values: None)


@pytest.mark.parametrize(
    "change",
    [
        unknown_filter,
        another_emit,
        another_factory,
        as_sentry,
        as_caplog,
        filter_of_the_logger,
        too_high,
        other_info,
    ],
)
def test_a_change_of_logging_counts_at_once(added, change, monkeypatch):
    with logging_to(handler := handler_on(stream := Stream())):
        log_success(MESSAGES[0], about())
        change(handler, monkeypatch)
        log_success(MESSAGES[0], about())
    assert len(added) == 1
    silent = (unknown_filter, another_emit, too_high, other_info)
    assert stream.written.count("succeeded") == (1 if change in silent else 2)


def test_a_watched_file_may_be_moved(tmp_path, added):
    path = tmp_path / "worker.log"
    handler = logging.handlers.WatchedFileHandler(path)
    handler.setFormatter(logging.Formatter("%(message)s"))
    with logging_to(handler):
        log_success("1", about())
        path.rename(tmp_path / "old.log")
        log_success("2", about())
    handler.close()
    assert ((tmp_path / "old.log").read_text(), path.read_text(), len(added)) == ("1\n", "2\n", 2)


def test_a_stream_that_fails_is_reported_by_its_handler():
    handler = handler_on(stream := Stream())
    stream.close()
    with logging_to(handler), mock.patch.object(handler, "handleError") as report:
        log_success(MESSAGES[0], about())
    assert report.call_args.args[0].getMessage() == MESSAGES[0] % about()


class Slow(Stream):
    """A file that takes no more until it may."""

    def __init__(self):
        super().__init__()
        self.blocks = threading.Event()
        self.goes_on = threading.Event()

    def write(self, text):
        if "slow" in text:
            self.blocks.set()
            assert self.goes_on.wait(10)
        return super().write(text)


@contextmanager
def a_slow_line(stream):
    """Another lane writes a line that takes time."""
    writer = threading.Thread(target=log_success, args=("slow", about()))
    writer.start()
    assert stream.blocks.wait(10)
    try:
        yield
    finally:
        stream.goes_on.set()
        writer.join(10)


def test_a_lane_leaves_its_line_to_the_one_that_writes():
    stream = Slow()
    with logging_to(handler_on(stream, "%(message)s")):
        with a_slow_line(stream):
            log_success("left", about())
            log_success("left, too", about())
        assert stream.written == "slow\nleft\nleft, too\n"


@pytest.mark.parametrize("say", [logging.getLogger("own").warning, lambda text: wait_for_lines()])
def test_what_comes_later_waits_for_the_line_that_was_left(say):
    """As a function that logs by another handler of the same stream, or a settle of the job."""
    stream, own = Slow(), logging.getLogger("own")
    with (
        logging_to(handler_on(stream, "%(message)s")),
        mock.patch.object(own, "handlers", [handler_on(stream, "%(message)s")]),
        mock.patch.object(own, "propagate", False),
    ):
        with a_slow_line(stream):
            done = []

            def lane():
                log_success("left", about())
                say("own")
                done.append(stream.written)

            thread = threading.Thread(target=lane)
            thread.start()
            eventually(
                lambda: run_logs.being_written and any(lines._waiting for lines in run_logs.being_written)
            )
            assert not done
        thread.join(10)
        assert done[0].startswith("slow\nleft\n")


def test_many_lanes_lose_no_line_and_keep_their_order():
    stream, task_logger = Stream(), logging.getLogger("celery.task")
    names = [f"lane-{number}" for number in range(6)]

    def lane(name):
        for number in range(300):
            log_success("%(name)s", about(name=f"{name} ran {number}"))
            if number % 7 == 0:
                task_logger.warning("%s says %d", name, number)

    with (
        logging_to(handler_on(stream, "%(message)s")),
        mock.patch.object(task_logger, "handlers", [handler_on(stream, "%(message)s")]),
        mock.patch.object(task_logger, "propagate", False),
    ):
        threads = [threading.Thread(target=lane, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    found = stream.written.splitlines()
    for name in names:
        expected = []
        for number in range(300):
            expected += [f"{name} ran {number}"]
            expected += [f"{name} says {number}"] if number % 7 == 0 else []
        assert [line for line in found if line.startswith(name)] == expected
    assert not run_logs.being_written
