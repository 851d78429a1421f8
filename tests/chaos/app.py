"""The workers' app. The environment says where: LOWKIQ_CHAOS holds the fields of a Stage as JSON."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.store.durability import WAIT_MS
from tests.chaos.journal import Journal
from tests.chaos.recording import Recording

VARIABLE = "LOWKIQ_CHAOS"
#: Work of one id, in s: most are short; the rest, as parts of a lease time, make batches that straddle it.
SHORT = 0.02
LONG = 0.2
VERY_LONG = 1.0


#: Of so many payloads, one dies.
DOOMED = 25


class Doomed(Exception):
    """A payload that dies until it is mended."""


def mended(directory: str, payload: int) -> Path:
    """The file that says that a payload does not die any more."""
    return Path(directory) / f"mended-{payload}"


def _dies(stage: Stage, payloads: list[int]) -> bool:
    """Whether the first payload of a run of one id dies."""
    doomed = stage.when_dead == "hold" and payloads[0] % DOOMED == 0
    return doomed and not mended(stage.directory, payloads[0]).exists()


@dataclass(frozen=True)
class Stage:
    """What producer and workers of a run agree on."""

    url: str
    broker: str
    queue: str
    directory: str
    lease: float = 1.0
    shards: int = 12
    batch_size: int = 10
    exclusion: str = "cooperative"
    #: Whether the task is an ``async def``.
    awaits: bool = False
    #: Of pushes: `lowkiq_push_durability`.
    durability: str = "fast"
    #: "hold": payloads of DOOMED die once, and hold their ids.
    when_dead: Literal["go_on", "hold"] = "go_on"
    #: Fixed seconds of work an id; None draws them.
    work: float | None = None

    def variables(self) -> dict[str, str]:
        """What a worker's environment needs."""
        return {VARIABLE: json.dumps(asdict(self))}


def make_app(stage: Stage) -> Celery:
    """An app with the one ordered task of a run, for the processes that push."""
    app = Celery(stage.queue, broker=stage.broker, set_as_current=False)
    # A lost reply is to be noticed well within a lease; but replicas may take half a second to confirm.
    timeout = max(stage.lease / 2, 0.0 if stage.durability == "fast" else WAIT_MS / 1000 + 0.25)
    options = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    app.conf.update(
        lowkiq_url=stage.url,
        lowkiq_push_durability=stage.durability,
        lowkiq_lease_seconds=stage.lease,
        lowkiq_exclusion=stage.exclusion,
        # A cluster has the timeouts that its masters' shards need, and a producer for each shard.
        lowkiq_redis_options={} if "+cluster://" in stage.url else options,
        lowkiq_client_pool_size=16,
        task_default_queue=f"{stage.queue}-broker",
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_enable_remote_control=False,
    )
    return app


def add_task(app: Celery, stage: Stage, journal: Journal | None = None, recording: Any = None) -> Any:
    """The ordered task; it writes down what it works on, and when."""
    runs = itertools.count()
    chance = random.Random()

    def begin(task: Any, payloads_by_id: dict[str, list[int]]) -> tuple[Journal, int, float]:
        assert journal is not None
        run, info = next(runs), task.request.lowkiq
        claimed_at = recording.claimed_at() if recording is not None else time.monotonic()
        place = {"thread": threading.get_ident(), "shard": info.shard, "epoch": info.fence}
        journal.note("start", run=run, payloads=payloads_by_id, claimed_at=claimed_at, **place)
        return journal, run, sum(_seconds(chance, stage) for _ in payloads_by_id)

    def work(self: Any, payloads_by_id: dict[str, list[int]]) -> None:
        ledger, run, seconds = begin(self, payloads_by_id)
        time.sleep(seconds)
        if died := [p[0] for p in payloads_by_id.values() if _dies(stage, p)]:
            ledger.note("end", run=run, failed=True, died=died[0])
            raise Doomed(died[0])
        ledger.note("end", run=run)

    async def awaiting_work(self: Any, payloads_by_id: dict[str, list[int]]) -> None:
        ledger, run, seconds = begin(self, payloads_by_id)
        try:
            await asyncio.sleep(seconds)
        finally:
            # Also when it is cancelled, because its lease is lost.
            ledger.note("end", run=run)

    decorate: Any = ordered_task(
        app=app,
        name=stage.queue,
        shards=stage.shards,
        batch_size=1 if stage.when_dead == "hold" else stage.batch_size,
        when_dead=stage.when_dead,
        dont_retry=(Doomed,),
        max_crashes=1000,
        bind=True,
    )
    return decorate(awaiting_work if stage.awaits else work)


def _seconds(chance: random.Random, stage: Stage) -> float:
    if stage.work is not None:
        return stage.work
    draw = chance.random()
    if draw < 0.8:
        return SHORT
    return chance.uniform(SHORT, (LONG if draw < 0.995 else VERY_LONG) * stage.lease)


def worker_app(stage: Stage) -> Celery:
    """The app of a worker, whose store tells the journal what it is asked and what it answers."""
    made = make_app(stage)
    journal = Journal(stage.directory)
    recording = Recording(journal)
    add_task(made, stage, journal, recording)
    recording.record(made)
    return made


def __getattr__(name: str) -> Any:
    """``app``, made when Celery asks for it: only a worker has the environment for it."""
    if name != "app" or VARIABLE not in os.environ:
        raise AttributeError(name)
    globals()["app"] = made = worker_app(Stage(**json.loads(os.environ[VARIABLE])))
    return made
