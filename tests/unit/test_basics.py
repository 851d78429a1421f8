"""Tests of ``rules/basics.py``."""

from __future__ import annotations

import functools
import importlib.util
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import wrapt

from celery_lowkiq.rules import basics
from celery_lowkiq.rules.basics import cached_property, is_defined_in


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no clock that counts suspend")
def test_the_clock_of_leases_counts_the_time_in_suspend(monkeypatch):
    """It did not: a method of its class had the name of the module that has the clock."""
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0}.get)
    spec = importlib.util.spec_from_file_location("basics_of_a_machine_that_slept", basics.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.SystemClock().monotonic() == module.monotonic() == 7.0


# Values that the objects of the package keep. No Redis.


class Shelf:
    def __init__(self):
        self.made = []
        self.together = threading.Barrier(1)

    @cached_property
    def book(self):
        """What stands there."""
        self.made.append(object())
        mine = self.made[-1]
        self.together.wait(30)
        return mine


def test_a_value_is_made_once_for_each_object():
    first, second = Shelf(), Shelf()
    assert first.book is first.book
    assert len(first.made) == 1
    assert second.book is not first.book
    assert Shelf.book.__doc__ == "What stands there."


def test_a_value_is_replaced_and_forgotten_as_any_attribute():
    shelf = Shelf()
    shelf.book = "another"
    assert shelf.book == "another"
    del shelf.book
    assert shelf.book is shelf.made[0]


def test_threads_that_ask_at_the_same_time_get_the_same_value():
    shelf = Shelf()
    shelf.together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: shelf.book, range(2))
    assert len(shelf.made) == 2
    assert first is second is shelf.book


# Where a function is defined, and whether that shows that it was replaced.

WRAPPER = textwrap.TextWrapper()


@pytest.mark.parametrize("function", [textwrap.wrap, textwrap.TextWrapper.wrap, WRAPPER.wrap])
def test_functions_and_bound_methods_are_found(function):
    assert is_defined_in(function, functools, textwrap)
    assert not is_defined_in(function, functools)


@pytest.mark.parametrize(
    "wrapped",
    [
        functools.wraps(textwrap.wrap)(lambda *args: []),
        functools.partial(textwrap.wrap),
        wrapt.FunctionWrapper(textwrap.wrap, lambda function, _, args, kwargs: function(*args, **kwargs)),
    ],
)
def test_a_function_that_is_replaced_is_not(wrapped):
    assert not is_defined_in(wrapped, textwrap)


def test_a_method_that_is_replaced_is_not(monkeypatch):
    """A proxy of ``wrapt`` shows the attributes of the method, also ``__func__``."""
    proxy = wrapt.FunctionWrapper(WRAPPER.wrap.__func__, lambda method, _, args, kwargs: method(*args))
    monkeypatch.setattr(textwrap.TextWrapper, "wrap", proxy)
    assert WRAPPER.wrap.__func__ is not proxy
    assert not is_defined_in(WRAPPER.wrap, textwrap)
    assert not is_defined_in(textwrap.TextWrapper.wrap, textwrap)


def test_what_is_no_function_is_not():
    assert not is_defined_in(len, textwrap)
    assert not is_defined_in(None, textwrap)
