"""The app that the workers of the bench run: ``celery -A benchmarks.proj worker -Q <queue>``."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task

SETTINGS = json.loads(os.environ.get("BENCH_SETTINGS", "{}"))
#: Where the tasks that note their start write; the parent reads it.
STAMPS = os.environ.get("BENCH_STAMPS", "")
#: What a task of I/O does, in s.
NAP = 0.005
#: What a coroutine awaits, in s.
AWAITED = 0.1
#: The same as NAP for rows with few calls.
LONG_NAP = 0.02
#: Names of queues that get no calls.
IDLE_QUEUES = tuple(f"idle-{number:02d}" for number in range(100))


def make_app(**settings: Any) -> Celery:
    """An app with plain tasks and ordered ones, which do next to nothing."""
    app = Celery("bench", set_as_current=False)
    app.conf.update({"task_ignore_result": True, "broker_connection_retry_on_startup": True, **settings})
    add_blank(app)
    add_with_results(app)
    add_working(app)
    add_ways(app)
    add_idle(app)
    return app


def add_blank(app: Celery) -> None:
    """Tasks that do nothing: what is measured is what surrounds them."""
    ordered = {"app": app, "shared": False}

    @app.task(shared=False, name="plain")
    def plain(value: int) -> None:
        """Celery's own."""

    @ordered_task(**ordered, name="blank")
    def blank(payloads_by_id: dict[str, list[Any]]) -> None:
        """5 shards, batches of 1."""

    @ordered_task(**ordered, name="hundreds", batch_size=100)
    def hundreds(payloads_by_id: dict[str, list[Any]]) -> None:
        """Batches of 100."""

    @ordered_task(**ordered, name="single", shards=1)
    def single(payloads_by_id: dict[str, list[Any]]) -> None:
        """One shard, for one id with many payloads."""

    @ordered_task(**ordered, name="wide", shards=64)
    def wide(payloads_by_id: dict[str, list[Any]]) -> None:
        """Shards for many lanes."""

    @ordered_task(**ordered, name="idle", shards=200)
    def idle(payloads_by_id: dict[str, list[Any]]) -> None:
        """Never runs."""


def add_with_results(app: Celery) -> None:
    """Tasks that store results."""

    @app.task(shared=False, name="plain-results", ignore_result=False)
    def plain_results(value: int) -> None:
        """Celery's own."""

    @ordered_task(app=app, shared=False, name="results", ignore_result=False)
    def results(payloads_by_id: dict[str, list[Any]]) -> None:
        """5 shards, batches of 1."""


def add_working(app: Celery) -> None:
    """Tasks that wait, or tell when they started."""
    ordered = {"app": app, "shared": False}

    @app.task(shared=False, name="plain-stamp")
    def plain_stamp(value: int) -> None:
        stamp(value)

    @ordered_task(**ordered, name="naps", shards=40)
    def naps(payloads_by_id: dict[str, list[Any]]) -> None:
        time.sleep(NAP)

    @ordered_task(**ordered, name="awaits", shards=64, batch_size=50, per_id=True)
    async def awaits(job_id: str, payloads: list[Any]) -> None:
        await asyncio.sleep(AWAITED)

    @app.task(shared=False, name="plain-stamped-naps", acks_late=True)
    def plain_stamped_naps(value: str) -> None:
        stamp(value)
        time.sleep(LONG_NAP)

    @ordered_task(**ordered, name="stamped-naps", shards=40)
    def stamped_naps(payloads_by_id: dict[str, list[Any]]) -> None:
        stamp(*payloads_by_id)
        time.sleep(LONG_NAP)

    @ordered_task(**ordered, name="stamped")
    def stamped(payloads_by_id: dict[str, list[Any]]) -> None:
        stamp(*payloads_by_id)


def add_ways(app: Celery) -> None:
    """Tasks that compute, or wait, for some ms: as ``def`` and as ``async def``."""
    ordered = {"app": app, "shared": False, "shards": 40}
    for name, compute, wait in (("computes", True, 0.0), ("waits", False, NAP)):

        def work(payloads_by_id: dict[str, list[Any]], compute: bool = compute, wait: float = wait) -> None:
            computed() if compute else time.sleep(wait)

        async def work_async(
            job_id: str, payloads: list[Any], compute: bool = compute, wait: float = wait
        ) -> None:
            computed() if compute else await asyncio.sleep(wait)

        ordered_task(**ordered, name=name)(work)
        ordered_task(**ordered, name=f"{name}-async", batch_size=50, per_id=True)(work_async)


def computed() -> int:
    """Some 5 ms of plain Python."""
    return sum(number * number for number in range(100_000))


def add_idle(app: Celery) -> None:
    """Tasks that are never called."""
    for name in IDLE_QUEUES:
        ordered_task(app=app, shared=False, name=name, shards=24)(_idle)


def _idle(payloads_by_id: dict[str, list[Any]]) -> None:
    """Never runs."""


def stamp(value: Any) -> None:
    """Note when a job started, by the clocks that all processes of a machine share."""
    monotonic, now = time.monotonic(), time.time()
    with open(STAMPS, "ab", buffering=0) as stamps:
        stamps.write(f"{value} {monotonic} {now}\n".encode())


if SETTINGS:
    app = make_app(**SETTINGS)
    if os.environ.get("BENCH_PROFILE"):
        from .profile import watch_lanes

        watch_lanes(app, os.environ["BENCH_PROFILE"])
    if os.environ.get("BENCH_FRAMES"):
        from .frame_counter import count_lanes

        count_lanes(os.environ["BENCH_FRAMES"])
