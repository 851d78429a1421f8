"""Tests of ``rules/text.py``."""

from __future__ import annotations

import pytest

from celery_lowkiq.integration.settings import SETTINGS
from celery_lowkiq.rules.text import TRACEBACK, Times, duration, format_job_ids, iso, last_error_line, moment

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
BERLIN = Times.of("Europe/Berlin")


@pytest.mark.parametrize(
    "name, title, text",
    [
        ("relative", "2026-11-18 11:06:40 UTC", "1 h ago"),
        ("UTC", "2026-11-18 11:06:40 UTC", "2026-11-18 11:06:40 UTC"),
        ("Europe/Berlin", "2026-11-18 12:06:40 CET", "2026-11-18 12:06:40 CET"),
    ],
)
def test_the_exact_time_is_always_there(name, title, text):
    found = Times.of(name).element(AT, AT + 3600)
    assert found == f'<time datetime="{STAMP}" title="{title}">{text}</time>'


def test_a_time_to_come():
    assert ">in 3 min<" in Times().element(AT + 180, AT)


def test_a_number_that_no_calendar_has_stays_a_number():
    assert iso(9e18) == ""
    assert Times().element(9e18, 9e18) == "<time>now</time>"
    assert BERLIN.element(9e18, 0) == "<time>Unix time 9000000000000000000</time>"


def test_hours_and_minutes_stand_below_a_chart():
    assert ' data-words="15 min">15 min<' in Times().clock(AT, "15 min")
    assert ' data-words="15 min">12:06<' in BERLIN.clock(AT, "15 min")


def test_moments_of_a_sentence_are_written_in_the_zone_and_the_rest_is_escaped():
    found = BERLIN.marked("<b> since 2026-11-18 11:06:40 UTC & on", str.upper)
    time = (
        f'<time datetime="{STAMP}" title="2026-11-18 12:06:40 CET" data-exact>2026-11-18 12:06:40 CET</time>'
    )
    assert found == f"&lt;B&gt; SINCE {time} &amp; ON"
    assert BERLIN.marked("at 2026-99-99 11:06:40 UTC") == "at 2026-99-99 11:06:40 UTC"


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "a\0b"])
def test_an_unknown_zone_is_refused(name):
    assert not SETTINGS["web_times"].valid.accepts(name)
