"""How many frames of our code a call and a job take: its Python functions, and generators that go on."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from celery.signals import worker_shutdown

import celery_lowkiq

from .bench import Bench
from .worker import Worker

ROOT = str(Path(celery_lowkiq.__file__).parent)
CALLS = 21
JOBS = 2000


class FrameCounter:
    """Counts the frames of our code by thread, as a profile function of ``sys`` and ``threading``."""

    def __init__(self) -> None:
        self.by_thread: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            self.by_thread[threading.current_thread().name] += 1

    @property
    def in_lanes(self) -> int:
        return sum(count for name, count in self.by_thread.items() if name.startswith("lane-"))


class CountedWorker(Worker):
    """A worker with one lane, which counts the frames of its lane."""

    def __init__(self, bench: Bench, **settings: object) -> None:
        super().__init__(bench, "blank", lanes=1, **settings)
        self.frames = self.profile.with_suffix(".frames")
        self._env["BENCH_FRAMES"] = str(self.frames)


def count_lanes(path: str) -> None:
    """In a worker: count the frames of its lanes, and write their number when it stops."""
    counter = FrameCounter()
    threading.setprofile(counter)
    worker_shutdown.connect(lambda **_: Path(path).write_text(str(counter.in_lanes)), weak=False)


def text(bench: Bench) -> str:
    """Frames of a call, of a job in a full window, and of one that is alone in its claim."""
    delay, job, alone = _of_delay(bench), _of_a_job(bench), _of_a_job(bench, lowkiq_window=1)
    return f"frames of our code: delay {delay}, a job of batch 1 {job:.0f} (alone in its claim {alone:.0f})"


def _of_delay(bench: Bench) -> int:
    """The median of several calls, without what the first ones do."""
    blank = bench.app.tasks["blank"]
    counts = []
    for number in range(CALLS):
        counter = FrameCounter()
        sys.setprofile(counter)
        try:
            blank.delay(number, {"v": 1})
        finally:
            sys.setprofile(None)
        counts.append(sum(counter.by_thread.values()))
    return sorted(counts)[CALLS // 2]


def _of_a_job(bench: Bench, **settings: object) -> float:
    """In a lane, from its claim to its settle; the mean of many."""
    bench.empty()
    queue = bench.spec("blank")
    bench.fill(queue, JOBS)
    with CountedWorker(bench, **settings) as worker:
        worker.until(lambda: bench.processed(queue) >= JOBS)
    return float(worker.frames.read_text()) / JOBS
