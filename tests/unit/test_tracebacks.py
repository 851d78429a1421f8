"""What ``lowkiq_format_error = "traceback"`` keeps of an error."""

from __future__ import annotations

import traceback

import pytest
from celery import Celery

from celery_lowkiq.integration.errors import MAX_ERROR_BYTES
from celery_lowkiq.integration.settings import read_settings
from celery_lowkiq.integration.tracebacks import format_traceback


def raised(kind, function):
    with pytest.raises(kind) as caught:
        function()
    return caught.value


def deep(depth=200):
    return deep(depth - 1) if depth else 1 / 0


def test_the_error_is_the_last_line_and_the_way_to_it_before():
    lines = format_traceback(raised(ValueError, lambda: int("x"))).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_tracebacks.py" in lines[1]
    assert lines[-1] == "ValueError: invalid literal for int() with base 10: 'x'"


def test_a_long_one_keeps_its_end():
    error = raised(ZeroDivisionError, deep)
    text = format_traceback(error)
    assert len(text.encode()) < MAX_ERROR_BYTES
    assert text.endswith("ZeroDivisionError: division by zero")


def test_the_frames_before_the_tasks_function_are_left_out():
    app = Celery("proj", set_as_current=False)

    @app.task(shared=False)
    def broken():
        raise KeyError("x")

    error = raised(KeyError, broken)
    # From Celery's frame on, as a worker catches it.
    text = format_traceback(error.with_traceback(error.__traceback__.tb_next))
    assert "in __call__" in "".join(traceback.format_exception(error))
    assert "in __call__" not in text
    assert "in broken" in text


def test_the_setting_names_it():
    app = Celery("proj", set_as_current=False, broker="redis://localhost:1/0")
    app.conf.lowkiq_format_error = "traceback"
    assert read_settings(app).format_error is format_traceback
