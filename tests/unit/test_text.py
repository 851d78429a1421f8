"""Tests of ``rules/text.py``."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.text import (
    TRACEBACK,
    clock_element,
    duration,
    format_job_ids,
    iso,
    last_error_line,
    moment,
    time_element,
    with_moments,
)

# Times and errors as people read them.


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1, "0 s"),
        (0, "0 s"),
        (0.25, "0.2 s"),
        (1, "1 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (11520, "3 h 12 min"),
        (90000, "1 d 1 h"),
        (86400 * 400, "400 d"),
        (float("inf"), "inf s"),
        (float("nan"), "nan s"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_moments():
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(9e18) == "Unix time 9000000000000000000"


POSTGRES = f"""{TRACEBACK}
  File x
    y
IntegrityError: duplicate key
DETAIL: x
  HINT: y"""

TWO = f"""{TRACEBACK}
  File x
KeyError: 1

During handling of the above exception, another exception occurred:

{TRACEBACK}
  File y
ValueError: 2"""

GROUP = f"""  + Exception Group {TRACEBACK}
  |   File
  | ExceptionGroup: two
  +------
ExceptionGroup: two"""


@pytest.mark.parametrize(
    "text, line",
    [
        ("Traceback\n  File\nValueError: x\n\n", "ValueError: x"),
        (" \n", ""),
        (POSTGRES, "IntegrityError: duplicate key"),
        (TWO, "ValueError: 2"),
        (GROUP, "ExceptionGroup: two"),
        (f"{TRACEBACK}\n  File x", "File x"),
    ],
    ids=["last", "none", "many lines", "chained", "group", "cut"],
)
def test_the_line_of_an_error_that_says_what_it_was(text, line):
    assert last_error_line(text) == line


def test_names_of_jobs():
    assert format_job_ids(("1",), 1) == "job 1"
    assert format_job_ids(("1", "2"), 2) == "jobs 1, 2"
    assert format_job_ids(("1", "2"), 9) == "jobs 1, 2 and 7 more"


# Times as pages write them.

AT = 1_795_000_000.0
STAMP = "2026-11-18T11:06:40Z"
EXACT = "2026-11-18 11:06:40 UTC"


def test_the_exact_time_is_always_there():
    assert time_element(AT, AT + 3600) == f'<time datetime="{STAMP}" title="{EXACT}">1 h ago</time>'


def test_a_time_to_come():
    assert ">in 3 min<" in time_element(AT + 180, AT)


def test_a_number_that_no_calendar_has_stays_a_number():
    assert iso(9e18) == ""
    assert time_element(9e18, 9e18) == "<time>now</time>"


def test_spans_stand_below_a_chart():
    assert ' data-words="15 min">15 min<' in clock_element(AT, "15 min")


def test_moments_of_a_sentence_are_elements_and_the_rest_is_escaped():
    found = with_moments(f"<b> since {EXACT} & on", str.upper)
    time = f'<time datetime="{STAMP}" title="{EXACT}" data-exact>{EXACT}</time>'
    assert found == f"&lt;B&gt; SINCE {time} &amp; ON"
    assert with_moments("at 2026-99-99 11:06:40 UTC") == "at 2026-99-99 11:06:40 UTC"
