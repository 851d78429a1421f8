"""What Flower, ``celery events`` and ``inspect`` see of ordered calls."""

from __future__ import annotations

import threading

import pytest
from celery.events.state import State

from tests.waiting import eventually

WAIT = 30


@pytest.fixture
def watched(features):
    """Celery's own view of all events from now on, as Flower has it."""
    seen, heard = State(), threading.Event()
    seen.heard = []

    def hear(event):
        heard.set()
        seen.heard.append(event)
        if not event["type"].startswith("probe-"):
            seen.event(event)

    with features.app.connection_for_read() as connection:
        receiver = features.app.events.Receiver(connection, handlers={"*": hear})
        thread = threading.Thread(target=lambda: receiver.capture(limit=None, wakeup=False), daemon=True)
        thread.start()
        # A receiver says that it is ready before Redis has its subscription.
        with features.app.events.default_dispatcher() as dispatcher:
            eventually(lambda: dispatcher.send("probe-sent") or heard.wait(0.05), WAIT)
        yield seen
        receiver.should_stop = True
        thread.join(WAIT)


def ended(seen, result, state):
    return eventually(lambda: task if (task := seen.tasks.get(result.id)) and task.state == state else None)


def heard_of(result, seen, kind):
    """The event of this type about a call."""

    def heard():
        return next((one for one in seen.heard if (one["type"], one.get("uuid")) == (kind, result.id)), None)

    return eventually(heard, WAIT)


def test_a_call_of_its_own(features, work, job_id, watched):
    result = work.delay(job_id, "x")
    result.get(WAIT)
    task = ended(watched, result, "SUCCESS")
    assert eventually(lambda: task.routing_key) == "work"  # of the caller's own event
    assert (task.name, task.retries) == ("work", 0)
    assert task.runtime > 0
    assert job_id in task.args


def test_merged_calls_each_reach_their_end(features, work, job_id, watched):
    with features.holding(work, job_id):
        results = [work.delay(job_id, n) for n in range(2)]
        results.append(work.delay(job_id, {"once": f"once-{job_id}"}))
    for result in results:
        task = ended(watched, result, "SUCCESS")
        assert (task.name, task.retries) == ("work", 1)
        assert task.runtime > 0
        assert task.retried


@pytest.mark.parametrize("form", ["look", "look in place", "look at batch", "step-in-a-process"])
def test_arguments_are_shown_as_the_caller_wants(features, new_id, watched, form):
    """As those of a plain task, which is the first, in the events of caller and worker."""
    shown = {"argsrepr": "(hidden)", "kwargsrepr": "{hidden}"}
    result = features.app.tasks[form].apply_async((new_id(), 5), **shown)
    for kind in ("task-sent", "task-received"):
        event = heard_of(result, watched, kind)
        assert (event["args"], event["kwargs"]) == ("(hidden)", "{hidden}")


def test_no_secret_is_in_an_event(features, job_id, watched):
    """Neither in the arguments nor in the error, nor in the log of the worker."""
    task = features.app.tasks["quiet"]
    result = task.apply_async((job_id, {"fail": "token=hunter2", "password": "hunter2"}), ignore_result=False)
    # Celery's event of the caller has them, and may come late.
    received, failed = (heard_of(result, watched, kind) for kind in ("task-received", "task-failed"))
    assert "[redacted]" in received["args"]
    assert "[redacted]" in failed["exception"]
    assert "hunter2" not in f"{received} {failed}"
    # The event is sent before the line is written.
    logs = eventually(lambda: found if "[redacted]" in (found := features.node.logs()) else "")
    assert "hunter2" not in logs
