"""Tests of ``integration/current.py``."""

from __future__ import annotations

import sys

import pytest
from celery import Celery
from celery.utils.threads import LocalManager, _FastLocalStack, _LocalStack

from celery_lowkiq.integration.current import StackTop, naming
from celery_lowkiq.integration.loops import ContextStack
from tests.processes import run

# Commands in advice name the app as its user does.

ADVICE = "See `celery -A proj lowkiq held q`, or celery -A proj lowkiq doctor."


@pytest.mark.parametrize(
    "argv, name",
    [
        (["/usr/bin/celery", "-A", "shop.tasks", "lowkiq", "doctor"], "shop.tasks"),
        (["celery", "--app=shop.tasks:app", "worker"], "shop.tasks:app"),
        (["/venv/celery/__main__.py", "-Ashop", "worker"], "shop"),
        (["celery", "--app", "shop", "lowkiq", "web"], "shop"),
        (["gunicorn", "-A", "other"], "main"),
        (["celery", "-A"], "main"),
    ],
)
def test_a_command_names_the_app(monkeypatch, argv, name):
    monkeypatch.setattr(sys, "argv", argv)
    app = Celery("main", set_as_current=False)
    assert naming(ADVICE, app) == ADVICE.replace("proj", name)


def test_the_variable_in_place_of_the_option(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["celery", "lowkiq", "doctor"])
    monkeypatch.setenv("CELERY_APP", "shop")
    assert "celery -A shop lowkiq doctor" in naming(ADVICE, Celery("main", set_as_current=False))


def test_an_app_without_a_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert naming(ADVICE, Celery(set_as_current=False)) == ADVICE


# Calls from threads that did not make the app. Each case is a process: Celery's default app is its own.

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


# The top of Celery's stacks.


def of_another_thread():
    stack = _LocalStack()
    LocalManager([stack._local], ident_func=lambda: "mine")
    return stack


@pytest.mark.parametrize("kind", [_LocalStack, _FastLocalStack, ContextStack, of_another_thread])
def test_an_item_is_the_top_until_it_is_restored(kind):
    stack = kind()
    top = StackTop(stack)
    before = top.replace("outer")
    assert stack.stack == ["outer"]
    stack.push("of a call in the run")
    assert stack.pop() == "of a call in the run"
    # A run in a run, as of a task that is called in place by another.
    within = top.replace("inner")
    assert stack.top == "inner"
    top.restore(within)
    assert stack.stack == ["outer"]
    top.restore(before)
    assert (stack.top, len(stack)) == (None, 0)
