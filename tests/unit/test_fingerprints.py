"""Fingerprints of failures: what makes two failures the same."""

from __future__ import annotations

import json
import os

import pytest

from celery_lowkiq.rules.failures import fingerprint, mark_error, masked, read_mark, text_fingerprint


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
