"""Real ``celery worker`` processes, and how fast they get through what waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from .bench import Bench
from .statistics import rate

ROOT = Path(__file__).parents[1]
#: How often progress is looked at, and how long nothing may move, in s.
LOOK = 0.02
PATIENCE = 60.0


class Worker:
    """A worker that serves one queue until the end of the ``with`` block."""

    def __init__(
        self, bench: Bench, queue: str, *options: str, lanes: int = 5, name: str = "w", **settings: object
    ) -> None:
        self._log = bench.directory / f"{queue}-{name}.log"
        self.stamps = bench.directory / f"{queue}-{name}.stamps"
        self.profile = bench.directory / f"{queue}-{name}.profile"
        self._command = [sys.executable, "-m", "celery", "-A", "benchmarks.proj", "worker", "-P", "threads"]
        self._command += ["-c", str(lanes), "-l", "WARNING", "-Q", queue, "-n", f"{name}@bench"]
        self._command += ["--without-mingle", "--without-gossip", *options]
        self._env = {
            **os.environ,
            "BENCH_SETTINGS": json.dumps({**bench.settings, **settings}),
            "BENCH_STAMPS": str(self.stamps),
            "PYTHONWARNINGS": "ignore",
        }

    def profiled(self) -> Worker:
        """Let the worker measure where its lane spends its time."""
        self._env["BENCH_PROFILE"] = str(self.profile)
        return self

    def __enter__(self) -> Worker:
        self.stamps.write_bytes(b"")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def cpu_seconds(self) -> float:
        """Processor time of the process so far, in s."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def started(self) -> dict[str, tuple[float, float]]:
        """When each job started: monotonic and Unix time in s, by what the job was called with."""
        lines = (line.split() for line in self.stamps.read_text().splitlines())
        return {value: (float(monotonic), float(now)) for value, monotonic, now in lines}

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it. Raises RuntimeError, with the end of the worker's log, when it never comes."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker is stuck:\n{self._log.read_text()[-2000:]}")
            time.sleep(LOOK)

    def rate(self, done: Callable[[], int], total: int, high: float = 0.9) -> float:
        """Jobs a second in the middle of working through ``total`` jobs."""
        progress: list[tuple[float, float]] = []

        def look() -> bool:
            progress.append((time.monotonic(), done()))
            return progress[-1][1] >= total

        self.until(look)
        return rate(progress, high=high)


def microseconds_a_job(bench: Bench, task: str, count: int, *options: str, lanes: int = 5) -> float:
    """An ordered queue is filled, then a worker goes through it."""
    bench.empty()
    queue = bench.spec(task)
    bench.fill(queue, count)
    with Worker(bench, task, *options, lanes=lanes) as worker:
        return 1e6 / worker.rate(lambda: bench.processed(queue), count)


def celery_microseconds_a_job(bench: Bench, count: int) -> float:
    """The same for Celery's own queue."""
    bench.empty()
    plain = bench.app.tasks["plain"]
    with bench.app.producer_pool.acquire(block=True) as producer:
        for n in range(count):
            plain.apply_async((n,), producer=producer)
    with Worker(bench, "celery") as worker:
        return 1e6 / worker.rate(lambda: count - int(bench.direct.llen("celery")), count)
