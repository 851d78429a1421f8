"""Pytest plugin for Celery's integration tests: makes their tasks ordered, and chooses the worker's pool.

It is given by the environment: ``LOWKIQ_SUITE_POOL`` is the pool; ``LOWKIQ_SUITE_IDS``, which id a call has,
is a name of ``IDS``, or empty for plain tasks; ``LOWKIQ_SUITE_RUN_IN`` is the option ``run_in``. With
``LOWKIQ_SUITE_PROCESS``, the worker is a process of its own (``app.py``). The outcomes of the tests are
written to ``LOWKIQ_SUITE_REPORT``; a test that has one there is not run. ``LOWKIQ_SUITE_PART`` is the part of
the tests that is run, as ``0/6``; empty for all.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task
from celery.contrib.testing import worker

from celery_lowkiq import ordered_task
from celery_lowkiq.rules.models import shard_of
from tests.waiting import eventually

MODULE = "t.integration.tasks"
LANES = 4
#: Of each task. With 70 tasks, more of them cost a busy machine more than the tests do.
SHARDS = 8
#: Maximum time of a test in s, in place of its own, which is too little for some on a busy machine.
TIMEOUT = 300
#: It makes its task anew. With plain tasks and a worker in the tests' process the run never ends, and each
#: test after it waits for the end.
NEVER_IDLE = "test_class_based_task_retried"
#: Maximum time of a worker's start in s.
START = 240
_turn = itertools.count()


def _own_id(arguments: Any) -> str:
    """An id in the shard after that of the last call: a test may fill all lanes with as many calls."""
    shard = next(_turn) % SHARDS
    while shard_of(identifier := uuid.uuid4().hex, SHARDS) != shard:
        pass
    return identifier


#: The id of a call.
IDS: dict[str, Callable[[Any], str]] = {
    "own": _own_id,
    "few": lambda arguments: f"id-{next(_turn) % 3}",
}
#: A retry with other arguments must have the id of the call.
OF_ONE_ID = ("retry_with_args_after_kwargs", "retry_with_kwargs_after_args")
#: Options that need ``run_in="process"``, and with it a worker whose app a module has.
LIMITS = ("time_limit", "soft_time_limit")
#: The task to which a call gives one.
LIMITED_BY_CALL = "delayed_sum_with_soft_guard"


def order(task: Any) -> Any:
    """Make a task of Celery's tests ordered in place, once; other tasks stay as they are."""
    if not (os.environ["LOWKIQ_SUITE_IDS"] and type(task).run.__module__ == MODULE):
        return task
    short, run_in = task.name.rpartition(".")[2], os.environ["LOWKIQ_SUITE_RUN_IN"]
    by = (lambda arguments: "one") if short in OF_ONE_ID else IDS[os.environ["LOWKIQ_SUITE_IDS"]]
    options: dict[str, Any] = {"by": by, "shards": SHARDS}
    if "retry" not in short:
        options["max_retries"] = 0
    elif "max_retries" not in vars(type(task)):
        options["max_retries"] = Task.max_retries
    limited = [name for name in LIMITS if getattr(task, name)]
    if run_in or (os.environ["LOWKIQ_SUITE_PROCESS"] and (limited or short == LIMITED_BY_CALL)):
        options["run_in"] = "process"
    else:
        options |= dict.fromkeys(limited)
    return ordered_task(**options)(task)


def _ordering(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(app: Celery, function: Any, *args: Any, **options: Any) -> Any:
        known = set(app._tasks)
        task = make(app, function, *args, **options)
        # Apps of tests have names; the default one is only there while tests are collected.
        return task if task.name in known or app.main == "default" else order(task)

    return made


_report = Path(os.environ["LOWKIQ_SUITE_REPORT"])
_outcomes: dict[str, str] = json.loads(_report.read_text()) if _report.exists() else {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave the tests of this part that have no outcome; each has a worker, and time on a busy machine."""
    if part := os.environ["LOWKIQ_SUITE_PART"]:
        first, parts = map(int, part.split("/"))
        items[:] = items[first::parts]
    items[:] = [item for item in items if item.nodeid not in _outcomes]
    if not (os.environ["LOWKIQ_SUITE_IDS"] or os.environ["LOWKIQ_SUITE_PROCESS"]):
        items[:] = [item for item in items if item.name != NEVER_IDLE]
    for item in items:
        item.fixturenames.append("celery_session_worker")
        item.add_marker(pytest.mark.timeout(TIMEOUT), append=False)


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of a test: that of its call, or of a setup, subtest or teardown that failed."""
    if report.when == "call" or not report.passed:
        if _outcomes.get(report.nodeid) != "failed":
            _outcomes[report.nodeid] = report.outcome
        # At once: a test that hangs may end the process.
        _report.write_text(json.dumps(_outcomes))


def order_tasks() -> None:
    """Make the tasks of each app ordered as the app makes them."""
    for name in ("_task_from_fun", "register_task"):
        setattr(Celery, name, _ordering(getattr(Celery, name)))


def pytest_configure(config: Any) -> None:
    """Order the tasks, and choose how the tests start their worker."""
    order_tasks()
    _report.write_text(json.dumps(_outcomes))
    pool, start = os.environ["LOWKIQ_SUITE_POOL"], worker.start_worker

    @contextmanager
    def start_process(app: Celery, **_: Any) -> Iterator[None]:
        words = ["-A", "tests.celery_suite.app", "worker", "-P", pool, "-c", str(LANES), "-l", "WARNING"]
        with subprocess.Popen([sys.executable, "-m", "celery", *words]) as process:
            try:
                eventually(lambda: app.control.ping(timeout=1.0), START)
                # The process that serves ordered queues beside the pool starts after the worker's own.
                app.tasks[f"{MODULE}.identity"].delay(1).get(timeout=START)
                yield
            finally:
                process.terminate()

    def start_thread(app: Celery, **options: Any) -> Any:
        return start(app, **{**options, "pool": pool, "concurrency": LANES})

    worker.start_worker = start_process if os.environ["LOWKIQ_SUITE_PROCESS"] else start_thread
