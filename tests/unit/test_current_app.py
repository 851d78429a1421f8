"""Calls from threads that did not make the app. Each case is a process: Celery's default app is its own."""

from __future__ import annotations

import sys

import pytest

from tests.processes import run

PROGRAM = """
import threading
from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("proj", broker={url!r})

@ordered_task(shards=1{options})
def sync_order(payloads_by_id):
    ...

{before}

def call():
    try:
        sync_order.delay("42", 1)
        print(sync_order.app.main, sync_order.ordered_queue.stats().length)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")

thread = threading.Thread(target=call)
thread.start()
thread.join()
"""


@pytest.fixture
def says(empty_redis):
    """What a thread of such a process says."""

    def says(before="", options=""):
        program = PROGRAM.format(url=empty_redis.url, before=before, options=options)
        done = run([sys.executable, "-c", program], 60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    return says


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("", ""),
        ("sync_order.name", ""),
        ("sync_order.name", ", name='sync', bind=False"),
        ("app.finalize(); current = Celery('other', set_as_current=False)", ""),
        ("app.set_default()", ""),
        ("", ", app=app"),
    ],
)
def test_the_only_app_and_the_only_one_that_bound_a_task_are_called_from_any_thread(says, before, options):
    """F3: Celery's current app is of a thread."""
    assert says(before, options) == "proj 1"


@pytest.mark.parametrize(
    "before",
    [
        "other = Celery('other', broker='redis://')",
        "other = Celery('other', broker='redis://'); other.finalize(); app.finalize()",
    ],
)
def test_a_thread_without_an_app_is_told_what_to_do(says, before):
    """F3: none of several apps is preferred, whether they have bound the task or not."""
    said = says(before)
    assert said.startswith(
        "ConfigurationError: this thread has no current Celery app: call app.set_default()"
    )
