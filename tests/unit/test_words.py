"""Times and errors as people read them."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.words import duration, job_names, last_line, moment


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1, "0.0 s"),
        (0.25, "0.2 s"),
        (1, "1 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (11520, "3 h 12 min"),
        (90000, "1 d 1 h"),
        (86400 * 400, "400 d"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_moments():
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(9e18) == "Unix time 9000000000000000000"


def test_the_last_line_of_an_error():
    assert last_line("Traceback\n  File\nValueError: x\n\n") == "ValueError: x"
    assert last_line(" \n") == ""
    assert last_line("x" * 300) == "x" * 197 + "..."


def test_names_of_jobs():
    assert job_names(("1",), 1) == "job 1"
    assert job_names(("1", "2"), 2) == "jobs 1, 2"
    assert job_names(("1", "2"), 9) == "jobs 1, 2 and 7 more"
