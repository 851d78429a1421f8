"""Tests of ``integration/safe_logging.py``."""

from __future__ import annotations

import builtins
import os
import traceback

import pytest
from celery import Celery

from celery_lowkiq.integration.error_text import (
    MAX_ERROR_BYTES,
    dump_error,
    error_text,
    load_error,
    with_frames,
)
from celery_lowkiq.integration.safe_logging import FRAMEWORK, format_traceback
from celery_lowkiq.integration.settings import format_message, read_settings
from celery_lowkiq.rules.text import last_error_line


def raised(kind, function):
    with pytest.raises(kind) as caught:
        function()
    return caught.value


def deep(depth=200):
    return deep(depth - 1) if depth else 1 / 0


def test_the_error_is_the_last_line_and_the_way_to_it_before():
    lines = format_traceback(raised(ValueError, lambda: int("x"))).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_safe_logging.py" in lines[1]
    assert lines[-1] == "ValueError: invalid literal for int() with base 10: 'x'"


def test_a_long_one_keeps_its_end():
    error = raised(ZeroDivisionError, deep)
    text = format_traceback(error)
    assert len(text.encode()) < MAX_ERROR_BYTES
    assert text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("text", ["\u4e2d" * 10_000, "x" * 100_000, "line\n" * 50_000])
def test_a_long_message_keeps_its_beginning_and_the_way_to_it(text):
    def fail():
        raise KeyError(text) if "\n" not in text else ValueError(text)

    found = format_traceback(raised(Exception, fail))
    assert len(found.encode()) < MAX_ERROR_BYTES
    assert "in fail" in found
    assert last_error_line(found)[:20] in ("KeyError: '" + text[:9], "ValueError: line")


def test_a_group_ends_with_what_it_is():
    group = getattr(builtins, "ExceptionGroup", None)
    if group is None:
        pytest.skip("Python 3.11 has groups of exceptions")

    def fail():
        raise group("both", [ValueError("one"), KeyError("two")])

    found = format_traceback(raised(group, fail))
    assert "ValueError: one" in found
    assert last_error_line(found) == "ExceptionGroup: both (2 sub-exceptions)"


def test_a_folder_whose_name_begins_as_celerys_is_no_part_of_it():
    folder = f"{FRAMEWORK[0].rstrip(os.sep)}_shop"
    code = compile("def fail():\n    raise KeyError(1)", f"{folder}/tasks.py", "exec")
    names = {}
    exec(code, names)
    error = raised(KeyError, names["fail"])
    assert "in fail" in format_traceback(error.with_traceback(error.__traceback__.tb_next))


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


@pytest.mark.parametrize(
    "settings, form",
    [
        ({}, format_traceback),
        ({"lowkiq_format_error": "traceback"}, format_traceback),
        ({"lowkiq_format_error": "message"}, format_message),
    ],
)
def test_a_traceback_is_the_default_and_the_setting_names_another(settings, form):
    app = Celery("proj", set_as_current=False, broker="redis://localhost:1/0")
    app.conf.update(settings)
    assert read_settings(app).format_error is form


def test_a_text_of_a_users_function_that_is_too_long_keeps_both_ends():
    app = Celery("proj", set_as_current=False, broker="redis://localhost:1/0")
    app.conf.lowkiq_format_error = lambda error: f"begins {'x' * MAX_ERROR_BYTES} {error}"
    data = dump_error(read_settings(app), ValueError("the end"))
    assert len(data) <= MAX_ERROR_BYTES
    assert data.startswith(b"begins x")
    assert data.endswith(b"x the end")


def stored_as(form, error):
    app = Celery(set_as_current=False)
    app.conf.lowkiq_format_error = form
    settings = read_settings(app)
    text = error_text(settings, error)
    return text, load_error(settings, text.data), load_error(settings, text.failure.description)


@pytest.mark.parametrize("code", ["int('x')", "1 +", "raise ValueError('two\\nlines')"])
def test_a_job_keeps_the_message_and_its_group_the_frames(code):
    error = raised(Exception, lambda: eval(compile(code, "tasks.py", "exec")))
    text, kept, about = stored_as("traceback", error)
    frames = f"  [its frames are with failure {text.failure.fingerprint}]"
    assert kept.splitlines()[:2] == ["Traceback (most recent call last):", frames]
    assert last_error_line(kept) == last_error_line(text.text)
    assert text.text == text.traceback == format_traceback(error)
    *_, group_frames, message = about.split("\0")
    assert kept.endswith(message)
    assert with_frames(kept, text.failure.fingerprint, group_frames) == format_traceback(error)
    alone = with_frames(kept, text.failure.fingerprint, "")
    assert (text.failure.fingerprint in alone, "a dump brought the job" in alone) == (False, True)
    assert alone.endswith(message)


@pytest.mark.parametrize("form", ["message", lambda error: f"event of {error}"])
def test_text_of_another_format_stays_with_its_job(form):
    _, kept, about = stored_as(form, ValueError("x"))
    assert kept == about.split("\0")[-1]
    assert kept in ("ValueError: x", "event of x")
