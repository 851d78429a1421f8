"""Counts the frames of our code, in this process or in the lanes of a worker."""

from __future__ import annotations

import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from celery.signals import worker_shutdown

import celery_lowkiq

ROOT = f"{Path(celery_lowkiq.__file__).parent}/"


class FrameCounter:
    """Notes the frames of our code by thread, as a profile function of ``sys`` and ``threading``."""

    def __init__(self) -> None:
        #: The thread and the code of each frame, in order. The name of a lane's thread has its shard.
        self.frames: list[tuple[str, CodeType]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            self.frames.append((threading.current_thread().name, frame.f_code))

    def codes_of(self, thread: str) -> list[CodeType]:
        """The code of each frame of the threads whose names begin so."""
        return [code for name, code in self.frames if name.startswith(thread)]


def count_lanes(path: str) -> None:
    """In a worker: count the frames of its lanes, and write their number when it stops."""
    counter = FrameCounter()
    threading.setprofile(counter)
    worker_shutdown.connect(
        lambda **_: Path(path).write_text(str(len(counter.codes_of("lane-")))), weak=False
    )
