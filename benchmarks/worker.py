"""Real ``celery worker`` processes, and what a job costs that they work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from .bench import Bench
from .cost import Cost
from .process import Process


class Worker(Process):
    """A worker that serves one queue until the end of the ``with`` block."""

    def __init__(
        self,
        bench: Bench,
        queue: str,
        *options: str,
        lanes: int = 5,
        level: str = "WARNING",
        name: str = "w",
        **settings: object,
    ) -> None:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.proj", "worker", "-P", "threads"]
        command += ["-c", str(lanes), "-l", level, "-Q", queue, "-n", f"{name}@bench"]
        command += ["--without-mingle", "--without-gossip", *options]
        env = {"BENCH_SETTINGS": json.dumps({**bench.settings, **settings}), "PYTHONWARNINGS": "ignore"}
        super().__init__(bench, f"{queue}-{name}", command, env)
        self.profile = bench.directory / f"{queue}-{name}.profile"

    def profiled(self) -> Worker:
        """Let the worker measure where its lane spends its time."""
        self._env["BENCH_PROFILE"] = str(self.profile)
        return self


def ordered(
    bench: Bench, task: str, count: int, *options: str, lanes: int = 5, level: str = "WARNING"
) -> Cost:
    """An ordered queue is filled, then a worker goes through it."""
    bench.empty()
    queue = bench.spec(task)
    if bench.app.tasks[task].ignore_result:
        bench.fill(queue, count)
    else:
        _call(bench, task, count)
    with Worker(bench, task, *options, lanes=lanes, level=level) as worker:
        return worker.cost(lambda: bench.processed(queue), count)


def _call(bench: Bench, task: str, count: int) -> None:
    """Calls with results."""
    for start in range(0, count, 1000):
        jobs = [{"id": n, "payload": {"v": 1}} for n in range(start, min(start + 1000, count))]
        bench.app.tasks[task].perform_async(jobs, results=True)


def celerys(
    bench: Bench, count: int, task: str = "plain", level: str = "WARNING", options: Sequence[str] = ()
) -> Cost:
    """The same for Celery's own queue."""
    bench.empty()
    plain = bench.app.tasks[task]
    with bench.app.producer_pool.acquire(block=True) as producer:
        for n in range(count):
            plain.apply_async((n,), producer=producer)
    with Worker(bench, "celery", *options, level=level) as worker:
        return worker.cost(lambda: count - int(bench.direct.llen("celery")), count)
