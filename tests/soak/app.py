"""The app of a soak run's producer and nodes. LOWKIQ_SOAK holds the fields of a Stage as JSON."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from celery import Celery

from celery_lowkiq import Again, ById, JobsFailed, ordered_task
from celery_lowkiq.integration import tracking
from tests.chaos.journal import Journal
from tests.chaos.recording import Recording
from tests.soak.kinds import Kind, queues

VARIABLE = "LOWKIQ_SOAK"
SHARDS = 2
#: Seconds of work of an id.
WORK = 0.002
#: Seconds for which Redis keeps results, and trackers that have ended.
KEPT = 60


@dataclass(frozen=True)
class Stage:
    """What producer and nodes of a run agree on."""

    url: str
    name: str
    directory: str
    lease: float
    exclusion: str
    rate: float
    seed: int

    def variables(self) -> dict[str, str]:
        """Environment of the processes."""
        return {VARIABLE: json.dumps(asdict(self))}


def stage_here() -> Stage:
    """Return the stage that the environment describes."""
    return Stage(**json.loads(os.environ[VARIABLE]))


class Failed(Exception):
    """What tasks raise that fail now and then."""


class Book:
    """Runs the tasks, and writes down what they work on, and when."""

    def __init__(self, journal: Journal, recording: Recording) -> None:
        self._journal = journal
        self._recording = recording
        self._runs = itertools.count()

    def run(self, request: Any, given: Mapping[str, Sequence[int]], kind: Kind) -> dict[str, int]:
        """Work on the payloads, each after the other. Raises what the kind of task raises."""
        payloads = {job_id: list(numbers)[: 1 if kind.again else None] for job_id, numbers in given.items()}
        tries = request.retries
        failed = [j for j, numbers in payloads.items() if any(kind.fails(n, tries) for n in numbers)]
        run, info = next(self._runs), request.lowkiq
        place = {"queue": info.queue, "shard": info.shard, "epoch": info.fence}
        self._journal.note(
            "start", run=run, payloads=payloads, claimed_at=self._recording.claimed_at(), **place
        )
        time.sleep(WORK * len(payloads))
        self._journal.note("end", run=run, queue=info.queue, failed=failed)
        _raise_of(kind, given, failed)
        return {job_id: len(numbers) for job_id, numbers in payloads.items()}


def _raise_of(kind: Kind, given: Mapping[str, Sequence[int]], failed: list[str]) -> None:
    if failed and len(given) > 1:
        raise JobsFailed({job_id: Failed(job_id) for job_id in failed})
    if failed:
        raise Failed(failed[0])
    if kind.again:
        raise Again([n for numbers in given.values() for n in list(numbers)[1:]], after=0.1)


def make_app(stage: Stage) -> Celery:
    """An app without tasks."""
    app = Celery(stage.name, broker=stage.url, backend=stage.url, set_as_current=False)
    # Memory is flat when as many trackers end their time as begin it.
    tracking.KEPT_SECONDS = KEPT
    app.conf.update(
        lowkiq_lease_seconds=stage.lease,
        lowkiq_exclusion=stage.exclusion,
        result_expires=KEPT,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
    )
    return app


def add_tasks(app: Celery, stage: Stage, book: Book | None = None) -> dict[str, tuple[Any, Kind]]:
    """The ordered tasks of all queues, with their kinds, by the names of the queues."""
    return {name: (_add_task(app, name, kind, book), kind) for name, kind in queues(stage.name).items()}


def _add_task(app: Celery, name: str, kind: Kind, book: Book | None) -> Any:
    def in_place(self: Any, order_id: str, number: int) -> dict[str, int]:
        assert book is not None
        return book.run(self.request, {order_id: [number]}, kind)

    def in_batches(self: Any, payloads_by_id: dict[str, list[int]]) -> ById:
        assert book is not None
        return ById(book.run(self.request, payloads_by_id, kind))

    make: Callable[..., Any] = ordered_task
    options = {"shards": SHARDS, "bind": True, "max_crashes": 1000, **kind.options}
    return make(app=app, name=name, **options)(in_place if kind.in_place else in_batches)


def node_app(stage: Stage) -> Celery:
    """The app of a node, whose store tells the journal what it is asked and what it answers."""
    made = make_app(stage)
    recording = Recording(Journal(stage.directory))
    add_tasks(made, stage, Book(recording.journal, recording))
    recording.record(made)
    return made


def __getattr__(name: str) -> Any:
    """``app``, made when Celery asks for it: only a node has the environment for it."""
    if name != "app" or VARIABLE not in os.environ:
        raise AttributeError(name)
    globals()["app"] = made = node_app(stage_here())
    return made
