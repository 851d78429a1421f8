"""Filters of jobs: which failed jobs one means, and how its texts are read."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.integration.queue import read_filter, read_rate
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.failures import FailureFilter, age_seconds


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("ValueError", True),
        ("ValueError: bad sku*", True),
        ("ValueError: bad sku 4?", True),
        ("*sku*", True),
        ("Value", False),
        ("ValueError: bad", False),
        ("valueerror", False),
        ("ValueError: bad sku [0-9]*", False),
    ],
)
def test_patterns_of_errors(pattern, matches):
    assert FailureFilter(error=pattern).matches("ValueError: bad sku 42", "f", 1.0) is matches


def test_all_that_is_given_must_match():
    wanted = FailureFilter("ValueError", "f", 10.0)
    assert wanted.matches("ValueError: x", "f", 10.0)
    assert not wanted.matches("ValueError: x", "g", 10.0)
    assert not wanted.matches("ValueError: x", "f", 9.9)


def test_ages_and_rates():
    assert [age_seconds(text) for text in ("90s", "30min", "5m", "2h", "7d")] == [90, 1800, 300, 7200, 604800]
    assert age_seconds("2") is None
    assert (read_rate("50/s"), read_rate("600/m")) == (50, 10)
    assert read_filter({"since": "1700000000.5"}).since == 1700000000.5


@pytest.mark.parametrize("values", [{"since": "tomorrow"}, {"since": "-2h"}])
def test_an_invalid_time(values):
    with pytest.raises(InvalidCall, match="expected an age such as"):
        read_filter(values)


@pytest.mark.parametrize("rate", ["0/s", "fast", "50", "1e9/s"])
def test_an_invalid_rate(rate):
    with pytest.raises(InvalidCall, match="expected a rate such as"):
        read_rate(rate)


def test_a_pattern_takes_no_time_that_grows_with_the_power_of_its_stars():
    """Eight stars and a line of 200 characters took longer than a minute, in which no other thread ran."""
    began = time.process_time()
    assert not FailureFilter("*a" * 500 + "b").matches("a" * 8000, "", 0)
    assert FailureFilter("*[a]*\\d+(.+)+$").matches("x[a]y\\d+(.+)+$: more", "", 0)
    assert time.process_time() - began < 2


def test_a_pattern_is_bounded():
    with pytest.raises(InvalidCall, match="at most 2000 characters"):
        read_filter({"error": "*a" * 1001})
