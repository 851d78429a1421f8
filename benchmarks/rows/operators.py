"""What operators do to many jobs at once, by the queue's own methods; nothing else runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from celery_lowkiq.rules.failure_filter import FailureFilter
from celery_lowkiq.rules.models import Disposition, Settlement

from ..bench import Bench
from ..row import Row, Target
from .size import acquire_all

_requests = count(1)


def operators(bench: Bench) -> Iterator[Row]:
    bench.empty()
    queue, jobs = bench.app.tasks["blank"].ordered_queue, bench.count(100_000, 10_000)
    _end_all(bench, jobs, Disposition.BURY)
    lines: list[bytes] = []
    boom = FailureFilter("boom*")
    longest: dict[str, float] = {}
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
        longest[text] = bench.longest_script(partial(_timed, act, seconds)) * 1000
        cost = seconds[0] * 1e6 / jobs
        yield Row(f"operators-{name}", f"operators, {jobs} jobs: {text}", "us/job", cost)
    slowest = sorted(longest.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{text} {took:.1f}" for text, took in slowest[:2])
    about = f"operators, {jobs} jobs: longest script ({shown})"
    yield Row("operators-script", about, "ms", slowest[0][1], targets=(Target(20.0),), yardstick="machine")


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
