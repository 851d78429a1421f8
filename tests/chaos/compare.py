"""Plain Celery and an ordered task side by side: the same jobs, and the same kills of their one worker."""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from tests.chaos.journal import Journal, Reader
from tests.chaos.nodes import Cluster, Crew

#: The worker's app.
APP = "tests.chaos.compare"
VARIABLE = "LOWKIQ_CHAOS_COMPARE"
#: Seconds of work a job.
WORK = 0.002
#: Plain Celery redelivers an unacknowledged job after 5 s, and looks every second.
TRANSPORT = {"visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
#: A side ends when it has finished nothing for this many s.
STALL = 30.0
LANES = 4
#: Seconds between two looks.
LOOK = 0.01


@dataclass(frozen=True)
class Side:
    """What became of the jobs of one side."""

    ordered: bool
    jobs: int
    kills: int
    #: Neither finished nor in Redis.
    lost: int
    doubled: int
    seconds: float

    @property
    def name(self) -> str:
        return "celery-lowkiq" if self.ordered else "celery, acks_late"


@dataclass(frozen=True)
class Trial:
    """What the workers of a side need to know."""

    ordered: bool
    url: str
    directory: str
    lease: float


def make_app(trial: Trial, journal: Journal | None = None) -> Any:
    """The app and its one task, which takes the job's number."""
    app = Celery("compared", broker=trial.url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        broker_transport_options=TRANSPORT,
        broker_connection_retry_on_startup=True,
        worker_enable_remote_control=False,
        lowkiq_lease_seconds=trial.lease,
    )

    def work(numbers: Any) -> None:
        assert journal is not None
        time.sleep(WORK)
        journal.note("done", numbers=numbers)

    if trial.ordered:

        @ordered_task(app=app, name="compared", shards=LANES, max_crashes=1000)
        def compared(payloads_by_id: dict[str, list[int]]) -> None:
            work([number for payloads in payloads_by_id.values() for number in payloads])

        return app

    @app.task(name="compared", shared=False)
    def plain(number: int) -> None:
        work([number])

    return app


def compare(jobs: int, kills: int, seed: int, lease: float) -> tuple[Side, Side]:
    """Plain Celery's side and ours. Raises ServerFailed, ServerNotFound."""
    return (
        _side(False, jobs, kills, seed, lease),
        _side(True, jobs, kills, seed, lease),
    )


def _side(ordered: bool, jobs: int, kills: int, seed: int, lease: float) -> Side:
    with tempfile.TemporaryDirectory() as directory, EmbeddedServer() as server:
        trial = Trial(ordered, server.url, directory, lease)
        app = make_app(trial)
        _push(app.tasks["compared"], trial, jobs)
        began_at = time.monotonic()
        done = _work_off(trial, jobs, _points(jobs, kills, seed))
        doubled = sum(count > 1 for count in done.values())
        lost = max(0, jobs - len(done) - _waiting(app))
        return Side(ordered, jobs, kills, lost, doubled, time.monotonic() - began_at)


def _waiting(app: Celery) -> int:
    """Messages of plain Celery that are still in Redis."""
    client = context_of(app).store.client
    return sum(client.commands([("LLEN", "celery"), ("HLEN", "unacked")]))


def _push(task: Any, trial: Trial, jobs: int) -> None:
    if trial.ordered:
        task.perform_async([{"id": number, "payload": number} for number in range(jobs)])
    else:
        for number in range(jobs):
            task.apply_async((number,))


def _points(jobs: int, kills: int, seed: int) -> list[int]:
    """After how many finished jobs the worker is killed: once at random in each part of the way."""
    chance = random.Random(seed)
    return [int((part + chance.random()) * jobs / kills) for part in range(kills)]


def _work_off(trial: Trial, jobs: int, points: list[int]) -> Counter[int]:
    """One worker, killed at the points and started again; how often each job was finished."""
    directory = Path(trial.directory)
    journal = Journal(directory)
    progress = Progress(directory)
    crew = Crew(APP, "compared", directory, LANES, {VARIABLE: json.dumps(asdict(trial))})
    cluster = Cluster(crew, journal)
    try:
        cluster.start(0)
        for point in points:
            progress.until(point)
            cluster.kill(0)
        progress.until(jobs)
    finally:
        cluster.stop()
        journal.close()
    return progress.done


class Progress:
    """How often each job was finished so far."""

    def __init__(self, directory: Path) -> None:
        self._reader = Reader(directory)
        self.done: Counter[int] = Counter()

    def until(self, jobs: int) -> None:
        """Wait until ``jobs`` jobs are finished, or none was for STALL s."""
        moved_at = time.monotonic()
        while len(self.done) < jobs and time.monotonic() - moved_at < STALL:
            before = len(self.done)
            for line in self._reader.new_lines():
                self.done.update(line.get("numbers", ()))
            if len(self.done) > before:
                moved_at = time.monotonic()
            threading.Event().wait(LOOK)


def __getattr__(name: str) -> Any:
    """``app``, made when Celery asks for it."""
    if name != "app" or VARIABLE not in os.environ:
        raise AttributeError(name)
    trial = Trial(**json.loads(os.environ[VARIABLE]))
    globals()["app"] = made = make_app(trial, Journal(trial.directory))
    return made
