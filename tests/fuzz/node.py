"""A node's engine with the runner of Celery in this process: innocent queues, and victims."""

from __future__ import annotations

import gc
import itertools
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.app import ordered_tasks
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.models import shard_of
from tests.waiting import eventually
from tests.worker.celery_runner import celery_runner
from tests.worker.engine import Engine

#: Shards of ``orders``: of the first anything is changed, of the next entries of ids, of the last nothing.
OPEN, PARTLY, CALM = (0, 1), 2, 3
VICTIMS = ("calls", "limited", "held")
#: Seconds between two polls, and those that an innocent job may take beside one.
POLL, RUN = 0.2, 0.5


class Failed(Exception):
    """What a job says that is to fail."""


def make_app(url):
    app = Celery("fuzz", broker=url, backend="cache+memory://", set_as_current=False)
    app.conf.lowkiq_lease_seconds = 1.0
    ordered = {"app": app, "shared": False, "retry_in": 0.02, "max_retries": 1}
    app.ran = set()

    def run(payloads_by_id):
        app.ran.update(payloads_by_id)
        if any(payload == "fails" for payloads in payloads_by_id.values() for payload in payloads):
            raise Failed("as it was told to")

    def call(order_id, number=0):
        app.ran.add(order_id)
        return number

    policies = {"debounce": 0.01, "drop_stale": 60, "job_ttl": 3600, "max_length": 10_000, "keep": 50}
    policies |= {
        "when_full": "drop_oldest",
        "priority": 3,
        "retry_priority": 4,
        "rate_limit_per_id": "1000/s",
    }
    ordered_task(**ordered, name="orders", shards=4, batch_size=3)(run)
    ordered_task(**ordered, name="calm", shards=2)(run)
    ordered_task(**ordered, name="limited", shards=2, **policies)(run)
    ordered_task(**ordered, name="held", shards=2, when_dead="hold")(run)
    ordered_task(**ordered, name="calls", shards=2, by="order_id")(call)
    app.finalize()
    return app


class Node:
    """The engine, and what it runs. ``path``: where the engine finds Redis."""

    #: The latest innocent job, in s.
    latest = 0.0

    def __init__(self, server, path=None, **options):
        self.app = make_app(server.url)
        self.inspector = Inspector(self.app, raw=True)
        self.queues = {name: task.queue_spec for name, task in ordered_tasks(self.app).items()}
        runner = celery_runner(self.app, path or server.socket_path)
        self.engine = Engine(server, path, runner, list(self.queues.values()), **options)
        self.redis = self.engine.pushes.client.servers.redis
        self._pids = (os.getpid(), server.pid)
        self._numbers = itertools.count()

    def ids(self, queue, shards=(), count=1):
        """New ids, ``count`` for each of these shards of a queue, or of all of them."""
        spec = self.queues[queue]
        left = dict.fromkeys(shards or range(spec.shards), count)
        found = []
        while any(left.values()):
            job_id = f"good-{next(self._numbers)}"
            shard = shard_of(job_id, spec.shards)
            if left.get(shard):
                left[shard] -= 1
                found.append(job_id)
        return found

    def push(self, queue, ids, payload="good", **when):
        for job_id in ids:
            self.app.tasks[queue].apply_async((job_id, payload), **when)

    def has_run(self, ids):
        return self.app.ran.issuperset(ids)

    def seconds_since(self, ids):
        """How long ago the last one has run, where that is known."""
        return 0.0

    @contextmanager
    def in_time(self, ids):
        """What is pushed in the block runs at most a poll and RUN s later.

        A second for which a thread of the node, of Redis or of this process was ready and had no processor
        does not count, for each of the threads: on a busy machine, a later job may pass, and none fails that
        was not late. Nor may this process collect the garbage of all earlier tests meanwhile, for a second.
        """
        gc.disable()
        try:
            began, before = time.monotonic(), without_processor(*self._pids)
            yield
            eventually(lambda: self.has_run(ids), 30)
            waited, seconds = without_processor(*self._pids), time.monotonic() - began
            seconds -= self.seconds_since(ids)
        finally:
            gc.enable()
        # A thread that has ended since is in one of them only.
        late = seconds - sum(waited[one] - before.get(one, 0.0) for one in waited)
        self.latest = max(self.latest, late)
        assert late <= POLL + RUN, f"{ids} ran after {late:.3f} s"


def without_processor(*pids):
    """Seconds that each thread of these processes has waited for a processor, if the kernel says so."""
    waited = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                waited[path] = int(path.read_text().split()[1]) / 1e9
    return waited
