"""What operators do to many jobs at once, by the queue's own methods; nothing else runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from celery_lowkiq.rules.job_filter import FailureFilter
from celery_lowkiq.rules.models import Disposition, Settlement

from ..bench import Bench
from ..row import Row, Target
from ..statistics import median
from .size import acquire_all

#: The longest script of an operation is that of its best round: what else the machine does lengthens it, too.
ROUNDS = 3
_requests = count(1)


class _Step(NamedTuple):
    name: str
    text: str
    #: Of the whole operation, and of its longest script.
    seconds: float
    longest: float


def operators(bench: Bench) -> Iterator[Row]:
    jobs = bench.count(100_000, 10_000)
    rounds = [list(_round(bench, jobs)) for _ in range(ROUNDS)]
    longest: dict[str, float] = {}
    for steps in zip(*rounds, strict=True):
        name, text = steps[0].name, steps[0].text
        longest[text] = min(step.longest for step in steps) * 1000
        costs = tuple(step.seconds * 1e6 / jobs for step in steps)
        about = f"operators, {jobs} jobs: {text}"
        yield Row(f"operators-{name}", about, "us/job", median(costs), repeats=costs)
    slowest = sorted(longest.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{text} {took:.1f}" for text, took in slowest[:2])
    about = f"operators, {jobs} jobs: longest script ({shown})"
    yield Row("operators-script", about, "ms", slowest[0][1], targets=(Target(20.0),), yardstick="machine")


def _round(bench: Bench, jobs: int) -> Iterator[_Step]:
    bench.empty()
    queue = bench.app.tasks["blank"].ordered_queue
    _end_all(bench, jobs, Disposition.BURY)
    lines: list[bytes] = []
    boom = FailureFilter("boom*")
    steps: dict[str, tuple[str, Callable[[], Any]]] = {
        "requeue-error": (
            "requeue --error 'boom*'",
            lambda: queue.change_matching(queue.requeue, boom, dead=True),
        ),
        "dump": ("dump", lambda: lines.extend(queue.dump())),
        "requeue": ("requeue --all", queue.requeue_all),
        "run-now": ("run-now --all", queue.run_now_all),
        "bury": ("bury --failed", queue.bury_failed),
        "delete": ("delete --morgue --all", queue.delete_dead_all),
        "load": ("load", lambda: queue.load(lines)),
    }
    before: dict[str, Callable[[], None]] = {
        "dump": lambda: _end_all(bench, 0, Disposition.BURY),
        "run-now": lambda: _postpone(bench, jobs),
        "bury": lambda: _end_all(bench, 0, Disposition.RETRY),
    }
    for name, (text, act) in steps.items():
        before.get(name, lambda: None)()
        seconds: list[float] = []
        longest = bench.longest_script(partial(_timed, act, seconds))
        yield _Step(name, text, seconds[0], longest)


def _timed(act: Callable[[], Any], seconds: list[float]) -> None:
    began = time.perf_counter()
    act()
    seconds.append(time.perf_counter() - began)


def _postpone(bench: Bench, jobs: int) -> None:
    """All of them are due much later."""
    bench.empty()
    bench.fill(bench.spec("blank"), jobs, perform_in=9e9)


def _end_all(bench: Bench, jobs: int, disposition: Disposition) -> None:
    """Push jobs, and settle all that are due with this disposition."""
    spec = replace(bench.spec("blank"), batch_size=1000)
    bench.fill(spec, jobs)
    for lease in acquire_all(bench, spec):
        while claimed := bench.store.claim(spec, lease, next(_requests)).jobs:
            verdicts = [Settlement(job.id, job.claim, disposition, 0, 9e8, b"boom") for job in claimed]
            bench.store.settle(spec, lease, verdicts)
