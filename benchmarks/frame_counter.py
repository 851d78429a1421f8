"""Counts the frames of our code, in this process or in the lanes of a worker."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from celery.signals import worker_shutdown

import celery_lowkiq

ROOT = str(Path(celery_lowkiq.__file__).parent)


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


def count_lanes(path: str) -> None:
    """In a worker: count the frames of its lanes, and write their number when it stops."""
    counter = FrameCounter()
    threading.setprofile(counter)
    worker_shutdown.connect(lambda **_: Path(path).write_text(str(counter.in_lanes)), weak=False)
