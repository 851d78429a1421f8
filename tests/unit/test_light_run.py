"""Tests of ``integration/light_run.py``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery._state import _task_stack, get_current_worker_task
from celery.utils.threads import LocalManager, _FastLocalStack, _LocalStack

from celery_lowkiq.integration import current
from celery_lowkiq.integration.current import current_worker_task
from celery_lowkiq.integration.light_run import RunStacks


def of_another_thread():
    stack = _LocalStack()
    LocalManager([stack._local], ident_func=lambda: "mine")
    return stack


@pytest.mark.parametrize("kind", [_LocalStack, _FastLocalStack, of_another_thread])
def test_a_task_is_the_running_one_until_it_is_popped(kind):
    task = SimpleNamespace(request_stack=kind())
    stacks = RunStacks(task)
    was_empty = stacks.push("outer")
    assert was_empty == (kind is _LocalStack)
    assert (_task_stack.stack, task.request_stack.stack) == ([task], ["outer"])
    # A run in a run, as of a task that is called in place by another.
    was_inner_empty = stacks.push("inner")
    assert not was_inner_empty
    assert (_task_stack.stack, task.request_stack.top) == ([task, task], "inner")
    stacks.pop(was_inner_empty)
    assert (_task_stack.stack, task.request_stack.stack) == ([task], ["outer"])
    stacks.pop(was_empty)
    assert (_task_stack.top, task.request_stack.top) == (None, None)


@pytest.mark.parametrize("is_usual", [True, False])
def test_the_current_task_is_celerys(is_usual, monkeypatch):
    if not is_usual:
        monkeypatch.setattr(current, "_running", None)
    assert current_worker_task() is get_current_worker_task() is None
    task = SimpleNamespace(request=SimpleNamespace(called_directly=False), request_stack=_LocalStack())
    _task_stack.push(task)
    try:
        assert current_worker_task() is task
        task.request.called_directly = True
        assert current_worker_task() is None
    finally:
        _task_stack.pop()
    assert current_worker_task() is None
