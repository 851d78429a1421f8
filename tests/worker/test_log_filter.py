"""The one line that a worker logs of a batch."""

from __future__ import annotations

import re

import pytest

from tests.waiting import eventually


def lines(node, task):
    return [line for line in node.logs().splitlines() if f"Task {task}[" in line]


def test_a_batch_has_one_line_with_queue_shard_and_ids(app, start_worker):
    node = start_worker()
    app.tasks["batches"].perform_async([{"id": n, "payload": "x"} for n in range(3)])
    (line,) = eventually(lambda: lines(node, "batches"))
    assert re.search(
        r"Task batches\[[-0-9a-f]{36}\] succeeded in \S+s: None queue=batches shard=0 jobs=3 "
        r"ids='0','1','2'$",
        line,
    )


def test_a_failure_says_where_it_was(app, start_worker):
    """F1: at a worker's default level the first failure and the death have their tracebacks."""
    node = start_worker("-l", "WARNING", wait=False)
    app.tasks["outcome"].delay("7", "fail")
    retried, died = eventually(lambda: found if len(found := lines(node, "outcome")) == 2 else None)
    about = r"ValueError: as asked queue=outcome shard=0 id='7' runtime=\d+\.\d{3}s$"
    assert re.search(rf"WARNING.*failed, retry 1 at \d{{4}}-[-0-9: ]+ UTC: {about}", retried)
    assert re.search(rf"ERROR.*died, its payload is in the morgue: {about}", died)
    whole = node.logs()
    assert whole.count("Traceback (most recent call last)") == 2
    assert whole.count('raise ValueError("as asked")') == 2
    assert "in _run" not in whole, "no frame of ours, or of Celery's"
    stored = app.tasks["outcome"].ordered_queue.morgue().items[0].error
    assert all(line in whole for line in stored.splitlines())


@pytest.mark.full
def test_an_ordinary_task_has_celerys_line(app, start_worker):
    node = start_worker()
    app.tasks["plain"].delay(1)
    done = eventually(lambda: [line for line in lines(node, "plain") if "succeeded" in line])
    assert done[0].endswith(": None")


@pytest.mark.full
def test_above_info_nothing_is_said_of_success(app, start_worker, ledger):
    node = start_worker("-l", "WARNING", wait=False)
    app.tasks["batches"].delay(1, "x")
    ledger.wait_for("survived")
    eventually(lambda: app.tasks["batches"].ordered_queue.stats().processed == 1)
    assert not lines(node, "batches")
