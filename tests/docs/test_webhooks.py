"""Webhooks in any order end right with the README's recipe, and no history goes back."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tests.docs.test_docs import blocks

PROGRAM, RECIPE = (
    next(block for block in blocks("README.md") if text in block)
    for text in ("app = Celery(", "def save_state(")
)
DECLARATION, CALL = RECIPE.split("\n\n\n")
STATUSES = ["paid", "packed", "shipped"]


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "readme"}
    for code in (PROGRAM, DECLARATION):
        exec(compile(code, "README.md", "exec"), names)
    return names


@pytest.fixture
def lowkiq_app(names, lowkiq_server):
    names["app"].conf.update(broker_url=lowkiq_server.url, result_backend="cache+memory://")
    return names["app"]


@pytest.mark.parametrize("arrival", list(itertools.permutations(range(3))))
def test_messages_in_any_order_end_with_the_newest_state(lowkiq, names, capsys, arrival):
    """Each message comes twice, and a worker looks in between or does not."""
    task = names["save_state"]
    assert re.fullmatch(r'save_state.apply_async\(\(42, "paid"\), score=\d+, task_id=".+"\)\n', CALL)
    for order, looks in enumerate(itertools.product([False, True], repeat=3)):
        for version, look in zip(arrival, looks, strict=True):
            for _ in range(2):
                message = f"{arrival}-{order}-{version}"
                task.apply_async((order, STATUSES[version]), score=version, task_id=message)
            if look:
                lowkiq.drain(task)
        lowkiq.drain(task)
        saved = [line.split()[2] for line in capsys.readouterr().out.splitlines()]
        assert saved[-1] == "shipped"
        assert saved == sorted(set(saved), key=STATUSES.index)
