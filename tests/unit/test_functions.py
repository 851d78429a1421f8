"""Where a function is defined, and whether that shows that it was replaced."""

from __future__ import annotations

import functools
import textwrap

import pytest
import wrapt

from celery_lowkiq.rules.basics import is_defined_in

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
