"""Programs beside the bench: workers of ours, of Celery's queue, and of other systems."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from typing_extensions import Self

from .bench import Bench
from .cost import Cost
from .statistics import Sample, middle_part, rate

ROOT = Path(__file__).parents[1]
#: How often progress is looked at, and how long nothing may move, in s.
LOOK = 0.02
PATIENCE = 60.0


class Process:
    """A program that runs until the end of the ``with`` block. Its output goes to a file."""

    def __init__(self, bench: Bench, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._bench = bench
        self.log = bench.directory / f"{name}.log"
        self.stamps = bench.directory / f"{name}.stamps"
        self.counts_children = False
        #: Others whose processor time and memory are counted with this one.
        self.beside: Sequence[Process] = ()
        self._command = list(command)
        self._env = {**os.environ, "BENCH_STAMPS": str(self.stamps), **env}

    def __enter__(self) -> Self:
        self.stamps.write_bytes(b"")
        with self.log.open("wb") as log:
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
        """Processor time so far, in s."""
        return sum(times.user + times.system for times in (each.cpu_times() for each in self._processes()))

    def pss_mib(self) -> float:
        """Memory, with a fair part of what processes share, in MiB."""
        return sum(each.memory_full_info().pss for each in self._processes()) / 2**20

    def _processes(self) -> list[psutil.Process]:
        """The process, and its children with ``counts_children``."""
        main = psutil.Process(self._process.pid)
        children = main.children(recursive=True) if self.counts_children else []
        return [main, *children, *(each for one in self.beside for each in one._processes())]

    def started(self) -> dict[str, tuple[float, float]]:
        """When each job started: monotonic and Unix time in s, by what the job was called with."""
        lines = (line.split() for line in self.stamps.read_text().splitlines())
        return {value: (float(monotonic), float(now)) for value, monotonic, now in lines}

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it. Raises RuntimeError, with the end of the log, when it never comes."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker is stuck:\n{self.log.read_text()[-2000:]}")
            time.sleep(LOOK)

    def rate(self, done: Callable[[], int], total: int, high: float = 0.9) -> float:
        """Jobs a second in the middle of working through ``total`` jobs."""
        return rate(self._watched(done, total), high=high)

    def cost(self, done: Callable[[], int], total: int, high: float = 0.9) -> Cost:
        """The cost of a job in the middle of working through ``total`` jobs."""
        seconds, jobs, worker, redis = middle_part(self._watched(done, total), high=high)
        wall, worker, redis = (took / jobs * 1e6 for took in (seconds, worker, redis))
        return Cost(wall, worker=worker, redis=redis)

    def _watched(self, done: Callable[[], int], total: int) -> list[Sample]:
        """Time, jobs, and processor time of the worker and of Redis, until all jobs are done."""
        progress: list[Sample] = []

        def look() -> bool:
            moment = (time.monotonic(), done(), self.cpu_seconds(), self._bench.redis_cpu())
            progress.append(moment)
            return moment[1] >= total

        self.until(look)
        return progress
