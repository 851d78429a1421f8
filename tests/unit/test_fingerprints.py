"""Tests of ``rules/fingerprints.py``."""

from __future__ import annotations

import json
import os
import time

import pytest

from celery_lowkiq.integration.queue import read_filter, read_rate
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.fingerprints import fingerprint, mark_error, masked, read_mark, text_fingerprint
from celery_lowkiq.rules.job_filter import FailureFilter, age_seconds

# Fingerprints of failures: what makes two failures the same.


class BadSku(ValueError):
    """Of the user's code."""


def raised(function):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return caught.value


def fail(sku):
    raise BadSku(f"bad sku {sku}")


def fail_elsewhere(sku):
    raise BadSku(f"bad sku {sku}")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("bad sku 42", "bad sku *"),
        ("bad sku -1.5, not 3", "bad sku *, not *"),
        ("no order-42 at 0x7f3a9c", "no * at *"),
        ("no 550e8400-e29b-41d4-a716-446655440000", "no *"),
        ("no 'ab12 c' of \"x9\"", "no '*' of \"*\""),
        ("KeyError: 'price'", "KeyError: 'price'"),
        ("can't do it, don't", "can't do it, don't"),
        ("https://shop/orders/42?page=7", "https://shop/orders/*?page=*"),
        ("no such table: order_lines", "no such table: order_lines"),
    ],
)
def test_numbers_and_ids_are_masked(text, same):
    assert masked(text) == same


def test_ids_in_the_message_do_not_matter_and_the_place_does():
    one, other = (fingerprint(raised(lambda n=n: fail(n))) for n in ("7", "42"))
    assert one == other
    assert one.error == f"{__name__}.BadSku: bad sku *"
    assert one.where == f"{__name__}.fail"
    assert fingerprint(raised(lambda: fail_elsewhere("7"))).id != one.id


def test_the_place_is_the_last_one_of_the_users_code():
    found = fingerprint(raised(lambda: json.loads("{")))
    assert found.where == f"{__name__}.<lambda>"


def test_without_users_code_it_is_the_last_frame():
    error = raised(lambda: json.loads("{"))
    error.__traceback__ = error.__traceback__.tb_next.tb_next
    assert fingerprint(error).where == "json.decoder.raw_decode"


def test_frames_of_the_framework_are_nobodys_code():
    here = (os.path.dirname(__file__),)
    assert fingerprint(raised(lambda: json.loads("{")), here).where == "json.decoder.raw_decode"


def test_an_error_that_cannot_be_written_has_its_type():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    assert fingerprint(Silent()).error.endswith("Silent")


def test_only_the_first_line_counts():
    one, other = (fingerprint(ValueError(f"no such column\n{detail}")) for detail in ("a", "b"))
    assert one == other


def test_text_has_a_fingerprint_by_its_line():
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: bad 1'
    assert text_fingerprint(trace) == text_fingerprint("ValueError: bad 2")


def test_marks_of_stored_errors():
    own = fingerprint(ValueError("x")).id
    assert read_mark(mark_error(own, b"text")) == (own, b"text")
    assert read_mark(b"text without a mark") == ("", b"text without a mark")


# Filters of jobs: which failed jobs one means, and how its texts are read.


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
