"""Actions on 100,000 jobs while producers push: nothing is lost, and no script gets more than its share."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from dataclasses import replace

import pytest
import redis

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call, Disposition
from celery_lowkiq.store.dump_load import dump_entries
from tests.cli import proj
from tests.cli.conftest import end_all, start
from tests.waiting import eventually

JOBS = 100_000
#: What one script may be asked to do: ids, values, bytes, and jobs that it changes.
MOST_IDS, MOST_VALUES, MOST_BYTES, MOST_MOVED = 200, 5_000, 2 * 1024 * 1024, 1000
FAR = 9e9

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


class Producer(threading.Thread):
    """Pushes as fast as it can, to ids of its own and to some that are given; knows what was accepted."""

    def __init__(self, ids=()):
        super().__init__(daemon=True)
        self._ids = itertools.cycle(ids or [None])
        self._enough = threading.Event()
        self.accepted = set()

    def run(self):
        store, spec = context_of(proj.app).store, proj.sync_order.queue_spec
        for number in itertools.count():
            if self._enough.is_set():
                return
            data = b'"pushed %d"' % number
            jobs = [(job_id, data) for job_id in (f"new{number}", next(self._ids)) if job_id]
            store.push(spec, [Call(job_id, data, perform_in=FAR) for job_id, data in jobs])
            self.accepted.update(jobs)

    def __enter__(self):
        self.start()
        eventually(lambda: self.accepted)
        return self

    def __exit__(self, *_):
        self._enough.set()
        self.join(60)
        assert not self.is_alive()


@pytest.fixture
def scripts(server, monkeypatch):
    """What each script call of this thread was handed, and what it answered."""
    client, me, seen = context_of(proj.app).store.client, threading.get_ident(), []
    steps = client.calls

    def recorded(asked):
        replies = steps(asked)
        if threading.get_ident() == me:
            seen.extend(zip(asked, replies, strict=True))
        return replies

    monkeypatch.setattr(client, "calls", recorded)
    return seen


#: How a script's answer tells how many jobs it changed.
MOVED = {"requeue": 1, "bury": 1, "delete": 1}


def check_bounds(scripts, least):
    """Many calls, and each of them small."""
    assert len(scripts) >= least
    for call, reply in scripts:
        size = sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in call.values)
        assert (len(call.values) <= MOST_VALUES, size <= MOST_BYTES) == (True, True), call.script.name
        if call.script.name in MOVED:
            assert reply[MOVED[call.script.name]] <= MOST_IDS
        if call.script.name == "run_now":
            assert reply <= MOST_MOVED
    scripts.clear()


def fill(count, disposition, prefix):
    """Push ``count`` jobs, and settle them with this disposition."""
    store, spec = context_of(proj.app).store, proj.sync_order.queue_spec
    jobs = [Call(f"{prefix}{n}", b"%d" % n, float(n), 1.0) for n in range(count)]
    for first in range(0, count, 10_000):
        store.push(spec, jobs[first : first + 10_000])
    assert end_all(proj.sync_order, disposition, spec=replace(spec, batch_size=1000)) == count
    return {(job.id, job.data) for job in jobs}


def found():
    """All payloads of the queue, wherever they are."""
    entries = dump_entries(context_of(proj.app).store, proj.sync_order.queue_spec)
    return {(entry.id, payload.data) for entry in entries for payload in entry.payloads}


def test_what_moves_jobs_loses_none(run, queue, scripts):
    there = fill(JOBS // 2, Disposition.BURY, "dead") | fill(JOBS // 2, Disposition.RETRY, "failed")
    scripts.clear()
    with Producer([f"{kind}{n}" for n in range(0, JOBS // 2, 7) for kind in ("dead", "failed")]) as producer:
        assert run("requeue", "sync_order", "--all", "--yes").stdout.startswith(
            f"requeued {JOBS // 2} dead jobs"
        )
        check_bounds(scripts, JOBS // 2 // MOST_IDS)
        assert run("bury", "sync_order", "--failed", "--yes").exit_code == 0
        check_bounds(scripts, JOBS // 2 // MOST_IDS)
        assert run("run-now", "sync_order", "--all", "--yes").exit_code == 0
        check_bounds(scripts, 4)
        assert run("requeue", "sync_order", "--all", "--yes").stdout.startswith(
            f"requeued {JOBS // 2} dead jobs"
        )
        assert len(run("jobs", "sync_order", "--limit", "0").stdout.splitlines()) > JOBS
        check_bounds(scripts, JOBS // 100)
    assert found() == there | producer.accepted


def test_what_destroys_jobs_takes_no_other(run, queue, scripts):
    fill(JOBS // 2, Disposition.BURY, "dead")
    fill(JOBS // 2, Disposition.RETRY, "failed")
    scripts.clear()
    with Producer() as producer:
        failed = run("delete", "sync_order", "--failed", "--yes").stdout
        assert failed == f"deleted {JOBS // 2} failed jobs of queue sync_order\n"
        dead = run("delete", "sync_order", "--morgue", "--all", "--yes").stdout
        assert dead == f"deleted {JOBS // 2} dead jobs of queue sync_order\n"
        check_bounds(scripts, JOBS // MOST_IDS)
    assert found() == producer.accepted


def test_a_queue_moves_while_producers_push_to_the_other_redis(run, queue, server, scripts):
    there = fill(JOBS // 2, Disposition.BURY, "dead") | fill(JOBS // 2, Disposition.RETRY, "failed")
    scripts.clear()
    dumped = run("dump", "sync_order").stdout_bytes
    check_bounds(scripts, JOBS // MOST_IDS)
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.flushall()
    with Producer([f"failed{n}" for n in range(0, JOBS // 2, 7)]) as producer:
        assert run("load", "sync_order", stdin=dumped).exit_code == 0
        check_bounds(scripts, JOBS // MOST_IDS)
    assert found() == there | producer.accepted


def memory_of(*words, **pipes):
    """Largest memory (MiB) of such a process."""
    process = start(*words, **pipes)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 1024


def test_dump_and_load_need_little_memory(queue, server, tmp_path):
    """100 MB go through each of them."""
    store, spec, path = context_of(proj.app).store, queue.spec, tmp_path / "dump"
    small = memory_of("dump", "sync_order", stdout=subprocess.DEVNULL)
    for first in range(0, 50_000, 1000):
        store.push(spec, [Call(str(n), b"x" * 2000, perform_in=FAR) for n in range(first, first + 1000)])
    with path.open("wb") as file:
        assert memory_of("dump", "sync_order", stdout=file) < small + 40
    assert path.stat().st_size > 100_000_000
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.flushall()
    with path.open("rb") as file:
        assert memory_of("load", "sync_order", stdin=file, stdout=subprocess.DEVNULL) < small + 40
    assert queue.stats().length == 50_000
