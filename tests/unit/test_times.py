"""Times as pages write them."""

from __future__ import annotations

import pytest

from celery_lowkiq.integration.settings import SETTINGS
from celery_lowkiq.rules.text import Times, iso

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
