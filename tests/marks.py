"""Cases of a parametrized test that the test command leaves to ``nox -s full``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def first_often(cases: Collection[Any]) -> list[Any]:
    """All cases; the test command runs the first one."""
    first, *others = cases
    return [first, *(full(case) for case in others)]


def full(case: Any) -> Any:
    """A case for ``nox -s full``."""
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.full)
