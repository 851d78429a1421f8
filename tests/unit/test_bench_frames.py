"""The bench counts frames of our code, by thread."""

from __future__ import annotations

import sys
import threading

from benchmarks.frames import FrameCounter
from celery_lowkiq.rules.models import shard_of


def test_only_frames_of_our_code_are_counted():
    counter = FrameCounter()

    def look():
        sys.setprofile(counter)
        try:
            sorted("21", key=lambda digit: int(digit))
            shard_of("1", 5)
        finally:
            sys.setprofile(None)

    threads = [threading.Thread(target=look, name=name) for name in ("lane-1", "lane-2", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [code.co_name for code in counter.codes_of("lane-")] == ["shard_of"] * 2
    assert len(counter.codes_of("")) == 3
