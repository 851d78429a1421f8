"""How many frames of our code a call and a job take: its Python functions, and generators that go on."""

from __future__ import annotations

import sys

from .bench import Bench
from .frame_counter import FrameCounter
from .worker import Worker

CALLS = 21
JOBS = 2000


class CountedWorker(Worker):
    """A worker with one lane, which counts the frames of its lane."""

    def __init__(self, bench: Bench, **settings: object) -> None:
        super().__init__(bench, "blank", lanes=1, **settings)
        self.frames = self.profile.with_suffix(".frames")
        self._env["BENCH_FRAMES"] = str(self.frames)


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
        counts.append(len(counter.codes_of("")))
    return sorted(counts)[CALLS // 2]


def _of_a_job(bench: Bench, **settings: object) -> float:
    """In a lane, from its claim to its settle; the mean of many."""
    bench.empty()
    queue = bench.spec("blank")
    bench.fill(queue, JOBS)
    with CountedWorker(bench, **settings) as worker:
        worker.until(lambda: bench.processed(queue) >= JOBS)
    return float(worker.frames.read_text()) / JOBS
