"""A lane without Redis: Celery's own tracer, results in memory."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from celery import Celery
from celery.app.trace import build_tracer
from celery.backends.cache import _DUMMY_CLIENT_CACHE

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.gate import Gate, Signing
from celery_lowkiq.integration.records import CallRecord
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import (
    Batch,
    ClaimedCallRecords,
    Job,
    Lease,
    Payload,
    Recorded,
    ShardRef,
    StoredRecord,
)

SHARD = ShardRef("t", 0)


class Reader:
    """The store's side: pages of calls, and what was ended before the settle."""

    def __init__(self):
        self.records = []
        self.ended = []
        self.started = []
        self.news = []
        self.away = False

    def pages(self, shard, job):
        if job.calls is not None and job.calls.complete:
            yield job.calls.records
            return
        for start in range(0, len(self.records), 2):
            yield tuple(self.records[start : start + 2])

    def end(self, lease, ended, news=()):
        if self.away:
            raise StoreUnavailable("gone")
        self.ended += ended
        self.news += news

    def start(self, lease, records):
        self.started += [(record.key, read_record(data)) for record, data in records]


class TrackerStore:
    """What trackers were told before the settle."""

    def __init__(self):
        self.told = []
        self.cancelled = set()
        self.away = None

    def update(self, news):
        if self.away is not None:
            raise self.away
        self.told += news
        return self.cancelled

    def progress(self, runs, text, current, total):
        if self.away is not None:
            raise self.away
        self.told.append(([run.call for run in runs], text, current, total))


class Lane:
    """Runs batches as a lane does, through Celery's tracer; test_plain_runs has the light way."""

    def __init__(self, function, settings=None, **options):
        # All caches in memory are one.
        _DUMMY_CLIENT_CACHE.clear()
        self.app = Celery(
            "unit", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False
        )
        self.app.conf.update(settings or {})
        options = {"retry_in": lambda retry_count: 1, **options}
        task = ordered_task(app=self.app, shared=False, bind=True, name="t", **options)(function)
        self.app.finalize()
        task.__trace__ = build_tracer(task.name, task, self.app.loader, "host", app=self.app)
        self.task = task
        self.events = []
        dispatcher = SimpleNamespace(
            enabled=True, groups=set(), send=lambda kind, **fields: self.events.append((kind, fields))
        )
        consumer = SimpleNamespace(app=self.app, hostname="host", event_dispatcher=dispatcher)
        self.reader = Reader()
        self.tracker_store = TrackerStore()
        self.runner = CeleryRunner(
            {"t": task}, consumer, context_of(self.app), self.reader, self.tracker_store
        )

    def run(self, *jobs):
        lease = Lease(SHARD, "me", 1)
        batch = Batch(self.task.queue_spec, lease, 1, jobs, lost=threading.Event())
        settlements = self.runner.run(batch)
        self.runner.settled(batch, frozenset(settlement.id for settlement in settlements))
        return settlements

    def state(self, task_id):
        return self.app.AsyncResult(task_id).state

    def result(self, task_id):
        return self.app.AsyncResult(task_id).result


def job(*payloads, calls=(), job_id="1", recorded=Recorded.ALL, retry_count=-1, complete=True):
    """A claimed job. Calls are (payload's position, task id, headers)."""
    records = tuple(
        StoredRecord(b"key %d" % n, position, CallRecord(task_id, *rest).dump(CODEC))
        for n, (position, task_id, *rest) in enumerate(calls)
    )
    held = tuple(Payload(data, float(score), recorded) for score, data in enumerate(payloads))
    first = ClaimedCallRecords(records, complete)
    return Job(job_id, held, 0.0, retry_count, claim=1, calls=first)


def read_record(data, codec=None):
    """The call of a record, by an app that does not sign."""
    codec = codec or CODEC
    return CallRecord.verified(StoredRecord(b"", 0, data), Gate("q", codec, codec, Signing("off", None)))


CODEC = context_of(Celery("codec", broker="redis://localhost:1/0", set_as_current=False)).record_codec
