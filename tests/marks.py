"""Cases and examples that the test command leaves to ``nox -s full``."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import hypothesis
import pytest

#: LOWKIQ_TEST_CLUSTER=1 runs the tests of the store on a cluster.
ON_CLUSTER = os.environ.get("LOWKIQ_TEST_CLUSTER", "0") == "1"
SERVERS = ["cluster"] if ON_CLUSTER else ["here", "6.2"]


def first_often(cases: Collection[Any]) -> list[Any]:
    """All cases; the test command runs the first one."""
    first, *others = cases
    return [first, *(full(case) for case in others)]


def full(case: Any) -> Any:
    """A case for ``nox -s full``."""
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.full)


def examples(count: int) -> hypothesis.settings:
    """``count`` examples in ``nox -s full``, for a test marked ``random``; a fifth of them elsewhere."""
    whole = os.environ.get("HYPOTHESIS_PROFILE") == "random"
    return hypothesis.settings(max_examples=count if whole else count // 5)
