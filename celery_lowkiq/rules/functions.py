"""Where functions are defined: one that another package has replaced is not where it was."""

from __future__ import annotations

from types import FunctionType, MethodType, ModuleType
from typing import Any


def is_defined_in(function: Any, *modules: ModuleType) -> bool:
    """Whether a function, or that of a bound method, is defined in one of these modules."""
    # Not by attributes, which proxies have, too.
    if type(function) is MethodType:
        function = function.__func__
    files = [module.__file__ for module in modules]
    return type(function) is FunctionType and function.__code__.co_filename in files
