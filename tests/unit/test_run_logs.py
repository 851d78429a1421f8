"""Tests of ``integration/run_logs.py``."""

from __future__ import annotations

import json
import logging
import re
import time

import pytest
from celery.exceptions import Reject

from celery_lowkiq import BusinessFailure, ById, JobsFailed
from celery_lowkiq.integration import run_logs
from celery_lowkiq.integration.error_text import MAX_ERROR_BYTES
from celery_lowkiq.integration.run_logs import MOST_CHARACTERS, MOST_JOBS, MOST_TRACEBACKS
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Disposition, Recorded
from celery_lowkiq.rules.text import TRACEBACK, moment
from tests.unit.lanes import Lane, job

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def as_in_a_worker(monkeypatch):
    """The filter that a worker adds to Celery's logger."""
    monkeypatch.setattr(run_logs.logger, "filters", [run_logs.BatchFilter()])


@pytest.fixture
def log(caplog):
    """Lines about runs at some level: (level, text) of each, and how many tracebacks there are in it."""

    def lines(level="WARNING"):
        found = [record for record in caplog.records if record.levelno >= logging.getLevelName(level)]
        texts = [logging.Formatter().format(record) for record in found]
        return [
            (record.levelname, text.splitlines()[0], text.count(TRACEBACK))
            for record, text in zip(found, texts, strict=True)
        ]

    caplog.set_level("INFO")
    return lines


def boom(self, payloads_by_id):
    raise ValueError("boom")


def succeed(self, payloads_by_id):
    return ById({})


def plain(job_id="1", retry_count=-1):
    return job(b"1", job_id=job_id, recorded=Recorded.NONE, retry_count=retry_count)


def test_the_first_failure_has_its_traceback_queue_id_retry_and_next_time(log):
    began = time.time()
    Lane(boom, retry_in=100).run(plain("42"))
    ((level, line, tracebacks),) = log("INFO")
    assert (level, tracebacks) == ("WARNING", 1)
    found = re.fullmatch(
        r"Task t\[[-0-9a-f]{36}\] failed, retry 1 at (.{19} UTC): ValueError: boom "
        r"queue=t shard=0 id='42' runtime=\d+\.\d{3}s",
        line,
    )
    assert moment(began + 100) <= found[1] <= moment(time.time() + 100)


def test_the_first_failure_and_the_death_have_a_traceback(log):
    for retry_count in (-1, 0, 1):
        Lane(boom, max_retries=2).run(plain(retry_count=retry_count))
    found = [(level, count) for level, _, count in log("INFO")]
    assert found == [("WARNING", 1), ("WARNING", 0), ("ERROR", 1)]


def test_a_death_says_where_the_payload_is(log):
    Lane(boom, max_retries=0).run(job(b"1", job_id="42", calls=[(0, "the call")]))
    ((level, line, tracebacks),) = log()
    assert (level, tracebacks) == ("ERROR", 1)
    assert line.startswith("Task t[the call] died, its payload is in the morgue: ValueError: boom queue=t")


def test_formatters_get_the_id_as_it_is_and_no_next_try_of_a_death(log, caplog):
    Lane(boom, max_retries=1).run(plain("7"), plain("8", retry_count=0))
    lines = (record for record in caplog.records if "boom" in record.getMessage())
    died, failed = (json.loads(json.dumps(record.data)) for record in lines)
    assert (died["job_id"], failed["job_id"]) == ("8", "7")
    assert {"retry", "next"} <= failed.keys()
    assert died.keys().isdisjoint({"retry", "next"})


def test_the_traceback_is_stored_from_the_function_on_without_locals(log):
    def function(self, payloads_by_id):
        password = "hunter" + "2"  # noqa: F841
        boom(self, payloads_by_id)

    (settlement,) = Lane(function).run(plain())
    assert read_mark(settlement.error)[1].endswith(b"\nValueError: boom")
    text = settlement.failure.description.decode()
    first, second, *_ = (line for line in text.splitlines() if line.startswith("  File"))
    assert first.endswith("in function")
    assert second.endswith("in boom")
    assert text.endswith("ValueError: boom")
    assert "hunter2" not in text
    assert settlement.try_text == b"ValueError: boom"


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("max_retries", [0, 5])
def test_calls_of_a_merged_job_add_no_noise(log, calls, max_retries):
    lane = Lane(boom, max_retries=max_retries)
    lane.run(job(b"1", calls=[(0, f"call {n}") for n in range(calls)]))
    ((_, _, tracebacks),) = log()
    assert tracebacks == 1
    others = [line for level, line, count in log("INFO") if level == "INFO" and count == 0]
    assert len(others) == (calls if calls > 1 else 0)
    assert len(log("INFO")) == 1 + len(others)


def test_a_call_has_no_line_above_its_level(log, caplog):
    caplog.set_level("WARNING")
    Lane(boom, max_retries=0).run(job(b"1", calls=[(0, "a"), (0, "b")]))
    assert len(log("DEBUG")) == 1


def test_of_a_batch_each_job_has_a_line_and_each_error_a_traceback(log):
    ids = list(map(str, range(10)))
    Lane(boom, batch_size=10).run(*map(plain, ids))
    assert [count for _, _, count in log()] == [1] + [0] * 9
    assert [re.search("id='(.+)'", line)[1] for _, line, _ in log()] == ids


def test_of_a_batch_with_many_errors_the_log_is_bounded(log):
    def function(self, payloads_by_id):
        raise JobsFailed({job_id: ValueError(job_id) for job_id in payloads_by_id})

    count = MOST_JOBS + 20
    settlements = Lane(function, batch_size=count, max_retries=3).run(
        *(plain(str(n), 2 if n == count - 1 else -1) for n in range(count))
    )
    assert settlements[-1].disposition is Disposition.DIE
    lines = log()
    assert (lines[0][0], len(lines)) == ("ERROR", MOST_JOBS + 1)
    assert lines[-1][1].endswith("20 more jobs failed")
    # These errors were never raised: they have no way that led to them.
    assert sum(count for _, _, count in lines) == 0


def test_different_errors_of_a_batch_have_few_tracebacks(log):
    def function(self, payloads_by_id):
        found = {}
        for job_id in payloads_by_id:
            try:
                int(f"x{job_id}")
            except ValueError as error:
                found[job_id] = error
        raise JobsFailed(found)

    Lane(function, batch_size=20).run(*(plain(str(n)) for n in range(20)))
    assert sum(count for _, _, count in log()) == MOST_TRACEBACKS


def test_of_a_batch_a_job_that_dies_is_told_though_others_run_again(log):
    Lane(boom, batch_size=2, max_retries=1, isolate_failures=False).run(plain("new"), plain("old", 0))
    assert [(level, re.search("id='(.+)'", line)[1]) for level, line, _ in log()] == [
        ("ERROR", "old"),
        ("WARNING", "new"),
    ]


@pytest.mark.parametrize("max_retries", [0, 5])
def test_what_a_task_expects_is_info(log, max_retries):
    Lane(boom, throws=(ValueError,), max_retries=max_retries).run(plain())
    assert log() == []
    ((_, line, tracebacks),) = log("INFO")
    assert ("ValueError: boom" in line, tracebacks) == (True, 0)


def test_to_ask_for_another_run_is_no_news_and_to_die_of_it_is(log):
    def function(self, payloads_by_id):
        raise self.retry(countdown=5)

    Lane(function).run(plain())
    ((level, line, _),) = log("INFO")
    assert (level, "retry: Retry in 5.0s queue=" in line) == ("INFO", True)
    Lane(function, max_retries=0).run(plain())
    ((level, line, _),) = log()
    assert (level, "MaxRetriesExceededError: " in line) == ("ERROR", True)


@pytest.mark.parametrize(
    "error, level, words",
    [(BusinessFailure("closed"), "INFO", "closed"), (Reject("not mine"), "WARNING", "rejected")],
)
def test_what_is_no_failure_has_celerys_line(log, error, level, words):
    def function(self, payloads_by_id):
        raise error

    Lane(function).run(plain())
    (found, line, _), *others = log("INFO")
    assert (found, "queue=t" in line) == (level, True)
    assert ["to the morgue" in line for _, line, _ in others] == [True] * isinstance(error, Reject)


def test_a_poison_pill_is_told_as_a_death(log):
    Lane(boom).run(job(b"1", calls=[(0, "a")], retry_count=POISON_PILL_RETRY_COUNT))
    ((level, line, _),) = log()
    assert (level, "poison pill" in line) == ("ERROR", True)


def test_no_error_forges_a_line_or_fills_the_log(log, caplog):
    def function(self, payloads_by_id):
        raise ValueError("x\x1b[31m\u2028" + "y" * 100_000)

    Lane(function).run(plain("1\n[ERROR] forged"))
    (record,) = caplog.records
    line, *_ = record.getMessage().split("\n")
    assert line.isprintable()
    assert len(line) < MOST_CHARACTERS + 200
    assert len(record.getMessage().encode()) < MAX_ERROR_BYTES + 2 * MOST_CHARACTERS


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("hidden")

    __repr__ = __str__


def test_an_error_that_cannot_be_shown_is_told(log):
    def function(self, payloads_by_id):
        raise Mute

    (settlement,) = Lane(function).run(plain())
    assert settlement.disposition is Disposition.RETRY
    assert any(level == "WARNING" and "Mute" in line for level, line, _ in log())


def test_without_a_stored_traceback_the_log_has_it_all_the_same(log):
    (settlement,) = Lane(boom, {"lowkiq_format_error": "message"}).run(plain())
    assert read_mark(settlement.error)[1] == b"ValueError: boom"
    assert [count for _, _, count in log()] == [1]


def test_a_run_that_succeeds_makes_nothing_of_it(log, monkeypatch):
    monkeypatch.delattr("celery_lowkiq.integration.runner.log_failures")
    (settlement,) = Lane(succeed).run(plain())
    assert settlement.disposition is Disposition.DONE
    assert log() == []
