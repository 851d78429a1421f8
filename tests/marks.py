"""Cases and examples that the test command leaves to ``nox -s full``."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import hypothesis
import pytest

#: ``default``, ``full`` or ``random``, as the sessions of nox.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
#: LOWKIQ_TEST_CLUSTER=1 runs the tests of the store and of workers on a cluster of three masters.
ON_CLUSTER = os.environ.get("LOWKIQ_TEST_CLUSTER", "0") == "1"
#: Replicas of these masters.
REPLICAS = int(os.environ.get("LOWKIQ_TEST_REPLICAS", "0"))
SERVERS = ["cluster"] if ON_CLUSTER else ["here", "6.2"]


other_each_time = pytest.mark.skipif(PROFILE != "random", reason="of `nox -s random`: other cases each time")


def first_often(cases: Collection[Any]) -> list[Any]:
    """All cases; the test command runs the first one."""
    first, *others = cases
    return [first, *(full(case) for case in others)]


def full(case: Any) -> Any:
    """A case for ``nox -s full``."""
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.full)


def examples(count: int) -> hypothesis.settings:
    """``count`` examples in ``nox -s full``, for a test marked ``random``; a fifth of them elsewhere."""
    return hypothesis.settings(max_examples=count if PROFILE == "full" else count // 5)


def keep_those_of_a_cluster(
    config: pytest.Config, items: list[pytest.Item], folder: Path, fixture: str
) -> None:
    """With LOWKIQ_TEST_CLUSTER=1, deselect tests of a folder that are marked ``one_server``, or that do not
    use the fixture which brings the cluster.
    """
    if not ON_CLUSTER:
        return
    others = {
        item
        for item in items
        if item.path.is_relative_to(folder)
        and (item.get_closest_marker("one_server") or fixture not in getattr(item, "fixturenames", ()))
    }
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]
