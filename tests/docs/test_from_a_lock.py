"""docs/from-a-lock.md: each task with a lock, and the ordered one in its place."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.testing.store import lowkiq_store

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-a-lock.md").read_text()
DIFFS = dict(re.findall(r"^## ([^\n]+)\n\n```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
IMPORT = "from celery_lowkiq import ordered_task\n"
#: What is written to order 7, for two calls that wait.
WRITTEN = {
    "celery-singleton": ["paid"],
    "celery-once": ["paid"],
    "A lock in Redis": ["new", "paid"],
    "select_for_update": ["shipped", "shipped"],
}


def side(diff: str, dropped: str) -> str:
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] != dropped)


@pytest.mark.parametrize("title", DIFFS)
def test_the_ordered_task_does_what_the_page_says(title, redis_server):
    diff = DIFFS[title]
    compile(side(diff, "+"), title, "exec")
    app = Celery("locked", broker="redis://localhost:1/0", set_as_current=False)
    app.finalized = True  # without the tasks that other tests share with every app
    written: list[str] = []
    order = SimpleNamespace(ship=lambda: written.append("shipped"))
    names = {
        "__name__": "locked",
        "app": app,
        # Without an app, a task would belong to the apps of the other cases, too.
        "ordered_task": partial(ordered_task, app=app),
        "save": lambda order_id, status: written.append(status),
        "Order": SimpleNamespace(objects=SimpleNamespace(get=lambda pk: order)),
        "transaction": SimpleNamespace(atomic=nullcontext),
    }
    exec(compile(side(diff, "-").replace(IMPORT, ""), title, "exec"), names)
    task = app.tasks[next(name for name in app.tasks if name.startswith("locked."))]
    with lowkiq_store(app, redis_server) as store:
        for status in ("new", "paid"):
            task.delay(7, *([status] if "sync" in task.name else []))
        store.drain(task)
    assert written == WRITTEN[title]


def test_each_of_the_pages_tasks_is_tried():
    assert set(DIFFS) == set(WRITTEN)
    assert PAGE.count("```diff") == len(DIFFS)
