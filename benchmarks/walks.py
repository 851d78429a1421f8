"""``python -m benchmarks.walks``: the way through the package of a call, a job and a read.

Frames are calls of its functions, and generators that continue; functions and files are those they are in.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

from celery import Celery
from celery.bin.celery import celery
from celery.contrib.testing.worker import start_worker
from click.testing import CliRunner

from celery_lowkiq import ordered_task
from celery_lowkiq.embedded import EmbeddedServer

from .frame_counter import FrameCounter

#: The least of so many walks, after one that warms up.
REPEATS = 7
#: A lane that takes no step for so long (s) has ended its walk.
STILL = 0.3
LANE = "lane-"

app = Celery("walks", set_as_current=False)
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)


@ordered_task(app=app, shared=False, name="sync_order")
def sync_order(payloads_by_id: dict[str, list[Any]]) -> None:
    """Does nothing."""


class Walk(NamedTuple):
    """The size of a walk."""

    frames: int
    functions: int
    files: int

    @classmethod
    def of(cls, codes: list[CodeType]) -> Walk:
        return cls(len(codes), len(set(codes)), len({code.co_filename for code in codes}))


def of_this_thread(act: Callable[[], object]) -> Walk:
    """What this thread walks while it acts."""

    def walk() -> Walk:
        counter = FrameCounter()
        sys.setprofile(counter)
        try:
            act()
        finally:
            sys.setprofile(None)
        return Walk.of(counter.codes_of(""))

    act()
    return min(walk() for _ in range(REPEATS))


def of_a_lane() -> Walk:
    """What a lane walks for a job, from when it wakes until it sleeps again."""
    counter = FrameCounter()
    threading.setprofile(counter)
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, loglevel="ERROR"):
        _walk_of_lane(counter)
        return min(_walk_of_lane(counter) for _ in range(REPEATS))


def _walk_of_lane(counter: FrameCounter) -> Walk:
    _wait_until_still(counter)
    before = len(counter.codes_of(LANE))
    done = sync_order.ordered_queue.stats().processed
    sync_order.delay("42", {"v": 1})
    while sync_order.ordered_queue.stats().processed == done:
        time.sleep(0.01)
    _wait_until_still(counter)
    return Walk.of(counter.codes_of(LANE)[before:])


def _wait_until_still(counter: FrameCounter) -> None:
    steps, since = -1, time.monotonic()
    while time.monotonic() < since + STILL:
        if steps != (steps := len(counter.codes_of(LANE))):
            since = time.monotonic()
        time.sleep(0.01)


def show_stats() -> None:
    """The table of ``celery lowkiq stats``."""
    words = ["-A", "benchmarks.walks", "lowkiq", "stats"]
    found = CliRunner().invoke(celery, words, prog_name="celery", catch_exceptions=False)
    assert found.exit_code == 0, found.output


def main() -> None:
    with EmbeddedServer() as server:
        # The command line imports this module by its name: it is not the one that runs.
        from benchmarks import walks

        walks.app.conf.broker_url = server.url
        for name, walk in (
            ("delay", of_this_thread(lambda: walks.sync_order.delay("42", {"v": 1}))),
            ("stats", of_this_thread(walks.show_stats)),
            ("a lane's job", walks.of_a_lane()),
        ):
            print(f"{name}: {walk.frames} frames, {walk.functions} functions, {walk.files} files")


if __name__ == "__main__":
    main()
