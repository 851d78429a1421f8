"""The recipe for another number of shards, as the page has it, on a real worker."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import redis
from celery import Celery

from celery_lowkiq import QueueInUse, ordered_task
from tests.waiting import eventually
from tests.worker.nodes import ROOT, ProcessContainer

PAGE = (ROOT / "docs" / "changing-shards.md").read_text()
HEAD = """
from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("proj")
app.conf.lowkiq_lease_seconds = 1
"""


@pytest.fixture
def app(redis_server):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
    with Celery("proj", broker=redis_server.url, set_as_current=False) as app:
        yield app


@pytest.fixture
def forwarder(app, redis_server, tmp_path: Path):
    """A worker of the page's code, which holds the new queue back as the page says."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "resharded.py").write_text(HEAD + block)
    hold = re.findall(r"`(-X \S+)`", PAGE)[0].split()
    command = [sys.executable, "-m", "celery", "-A", "resharded", "worker", "-P", "threads", "-c", "2"]
    command += ["--without-mingle", "--without-gossip", "-l", "INFO", *hold]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "CELERY_BROKER_URL": redis_server.url}
    started: list[ProcessContainer] = []

    def start():
        started.append(ProcessContainer(command, env, tmp_path / "worker.log"))

    yield start
    for process in started:
        process.teardown()


def test_all_calls_of_an_id_meet_in_the_new_queue_in_order(app, forwarder):
    old, new = declared(app, "proj.sync_order", 5), declared(app, "proj.sync_order-2", 24)
    ids = [str(number) for number in range(20)]
    for version, caller in enumerate([old, old, new, old], start=1):
        caller.perform_async([{"id": id_, "payload": version} for id_ in ids])
    forwarder()
    eventually(lambda: (stats := old.ordered_queue.stats()).length + stats.busy == 0)
    assert {id_: waiting(new, id_) for id_ in ids} == {id_: [1, 2, 3, 4] for id_ in ids}


def test_an_empty_queue_is_resharded_while_code_with_both_numbers_runs(app):
    other = Celery("proj", broker=app.conf.broker_url, set_as_current=False)
    first = declared(app, "one", 5, queue="proj.q")
    second = declared(other, "two", 24, queue="proj.q")
    first.delay("1")
    second.delay("1", 2)
    assert waiting(first, "1") == waiting(second, "1") == ["", 2]
    with pytest.raises(QueueInUse, match=r"shards=24.*expected 5"):
        second.ordered_queue.reshard(24)
    first.ordered_queue.delete(["1"])
    second.ordered_queue.reshard(24)
    first.delay("2")
    assert waiting(second, "2") == [""]
    assert first.ordered_queue.stored_spec().shards == 24


def declared(app, name, shards, queue=None):
    @ordered_task(app=app, shared=False, name=name, queue_name=queue, shards=shards)
    def task(payloads_by_id): ...

    return task


def waiting(task, job_id):
    return [payload.value for payload in task.ordered_queue.job(job_id).waiting.payloads]
