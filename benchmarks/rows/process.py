"""Blank jobs through real workers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial

from kombu.utils.uuid import uuid

from .. import bare, sidekiq
from ..bench import Bench
from ..cost import Cost, Measure, called, interleaved, medians
from ..row import OURS, Row, Side, Target
from ..worker import Worker, celerys, ordered

SIDEKIQ, CELERY = "Sidekiq", "Celery"


def batch_1(bench: Bench) -> Iterator[Row]:
    count = bench.count(60_000, 6_000)
    sides = _blank_sides(bench, count, lambda: bare.worked(bench, count, bench.app.tasks["blank"].run))
    yield Row.of_costs(
        "batch1",
        "process, batch 1, 5 lanes",
        interleaved(bench.count(3, 1), sides),
        Target(0.4, SIDEKIQ),
        Target(1 / 40, CELERY),
    )


def info_lines(bench: Bench) -> Iterator[Row]:
    count = bench.count(30_000, 5_000)
    sides = _blank_sides(bench, count, lambda: _logged(bench, count), level="INFO")
    yield Row.of_costs(
        "batch1-info",
        "process, batch 1, 5 lanes, lines of level INFO to a file",
        interleaved(bench.count(3, 1), sides),
        Target(0.7, SIDEKIQ),
    )


def _blank_sides(bench: Bench, count: int, limit: Callable[[], Cost], **level: str) -> dict[str, Measure]:
    """The sides of a row of blank jobs. ``level``: of the log, other than the sides' own."""
    return {
        OURS: lambda: ordered(bench, "blank", count, **level),
        SIDEKIQ: sidekiq.if_installed(lambda: sidekiq.worked(bench, count, **level)),
        CELERY: lambda: celerys(bench, bench.count(5_000, 1_000), **level),
        bare.NAME: limit,
    }


def _logged(bench: Bench, count: int) -> Cost:
    """Bare commands, and a line for each job."""
    handler = logging.FileHandler(bench.directory / f"{bare.NAME}.log")
    handler.setFormatter(logging.Formatter(bench.app.conf.worker_log_format))
    logger = logging.Logger(__name__, logging.INFO)
    logger.addHandler(handler)
    with contextlib.closing(handler):
        return bare.worked(bench, count, lambda jobs: logger.info("Task %s succeeded", jobs))


def in_child(bench: Bench) -> Iterator[Row]:
    count = bench.count(20_000, 4_000)
    sides = {
        name: partial(_warm, bench, count, lanes, run_in)
        for lanes, of in ((1, "1 lane"), (5, "5 lanes"))
        for name, run_in in ((of, "thread"), (f"{of}, child", "process"))
    }
    costs = interleaved(bench.count(5, 3), sides)
    found = {name: medians(each).worker or 0.0 for name, each in costs.items()}
    more = {of: found[f"{of}, child"] - found[of] for of in ("1 lane", "5 lanes")}
    yield Row(
        "process",
        'run_in="process", batch 1, 5 lanes: CPU of worker and children over that of threads',
        "us/batch",
        more["5 lanes"],
        (Side("1 lane", more["1 lane"]),),
        (Target(150.0),),
        yardstick="machine",
        note=", ".join(f"{name}: {cpu:.0f} us CPU" for name, cpu in found.items()),
    )


def _warm(bench: Bench, count: int, lanes: int, run_in: str) -> Cost:
    """The cost when all lanes have their child processes."""
    bench.empty()
    queue, before = bench.spec("blank"), 500
    with Worker(bench, "blank", lanes=lanes, lowkiq_run_in=run_in) as worker:
        worker.counts_children = run_in == "process"
        bench.fill(queue, before)
        worker.until(lambda: bench.processed(queue) >= before)
        bench.fill(queue, count, start=before)
        return worker.cost(lambda: bench.processed(queue) - before, count)


def results(bench: Bench) -> Iterator[Row]:
    sides = {
        OURS: lambda: ordered(bench, "results", bench.count(20_000, 4_000)),
        CELERY: lambda: celerys(bench, bench.count(5_000, 1_000), "plain-results"),
        "backend.mark_as_done": lambda: _stored(bench, bench.count(3_000, 1_000)),
    }
    yield Row.of_costs(
        "batch1-results",
        "process, batch 1, 5 lanes, results in Redis",
        interleaved(bench.count(3, 1), sides),
        Target(0.1, CELERY),
    )


def _stored(bench: Bench, count: int) -> Cost:
    """What Celery's result backend takes, without a worker."""
    cost = called(bench, lambda: [bench.app.backend.mark_as_done(uuid(), None) for _ in range(count)], count)
    return Cost(cost.wall, worker=cost.client, redis=cost.redis)


def batch_100(bench: Bench) -> Iterator[Row]:
    many, count = bench.count(100_000, 30_000), bench.count(60_000, 6_000)
    sides = {
        OURS: lambda: ordered(bench, "hundreds", many),
        "batch 1": lambda: ordered(bench, "blank", count),
        bare.NAME: lambda: bare.worked(bench, many, bench.app.tasks["hundreds"].run, batch=100),
    }
    yield Row.of_costs(
        "batch100",
        "process, batch 100, 5 lanes",
        interleaved(bench.count(3, 1), sides),
        Target(0.5, "batch 1"),
    )


def events(bench: Bench) -> Iterator[Row]:
    count = bench.count(10_000, 3_000)
    sides = {
        OURS: lambda: ordered(bench, "blank", count, "-E"),
        CELERY: lambda: celerys(bench, bench.count(5_000, 1_000), options=("-E",)),
        "events off": lambda: ordered(bench, "blank", count),
    }
    yield Row.of_costs(
        "events",
        "process, batch 1, events on (-E)",
        interleaved(bench.count(3, 1), sides),
        Target(0.5, CELERY),
    )
