"""One stream through one of the tasks, on a real worker."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from . import interrupts
from .mirror import Mirror
from .progress import Progress
from .report import Outcome
from .sides import Side
from .stream import Event, wrong_files
from .worker import Worker, WorkerDied

#: Seconds that a worker gets to start, and that may pass without anything being done.
START_SECONDS = 60.0
STALL_SECONDS = 45.0
POLL_SECONDS = 0.1
SHOW_EVERY = 50


class Stalled(Exception):
    """Nothing moved for too long; the message names the condition."""


class RedisInUse(Exception):
    """Messages of another run are left in the queue."""


def run_side(
    side: Side, messages: Sequence[Event], expected: Mapping[str, str], directory: Path, pool: str
) -> Outcome:
    """Send the messages through one task, to a worker with this pool, and check the mirror.

    Raises ``RedisInUse`` when another run's messages are in the way, and ``Stalled`` or ``WorkerDied``
    after the end of the worker's log went to stderr.
    """
    file = directory / f"{side.name}.sqlite"
    with closing(Mirror(file)) as mirror:
        mirror.create()
        side.clear(messages)
        if left := side.left(0, mirror):
            raise RedisInUse(
                f"{left} jobs of another run of this example are in this Redis: use another database"
            )
        try:
            with _explained(Worker(file, directory / f"{side.name}.log", pool)) as worker:
                seconds = _send_and_wait(side, messages, mirror, worker)
        finally:
            side.clear(messages)
        writes = mirror.writes()
        wrong = len(wrong_files(mirror.tree(), expected))
    return Outcome(len(messages), writes.total, writes.stale, wrong, seconds)


@contextmanager
def _explained(worker: Worker) -> Iterator[Worker]:
    try:
        with worker:
            yield worker
    except (Stalled, WorkerDied):
        print(worker.last_words(), file=sys.stderr)
        raise


def _send_and_wait(side: Side, messages: Sequence[Event], mirror: Mirror, worker: Worker) -> float:
    """Seconds from the first message sent to the last one done."""
    with closing(Progress(side.title, len(messages))) as progress:

        def left(sent: int = len(messages)) -> int:
            waiting = side.left(sent, mirror)
            progress.show(sent - waiting)
            return waiting

        _until(lambda: int(not worker.is_ready()), START_SECONDS, "the worker to start", worker)
        started = time.monotonic()
        for number, message in enumerate(messages):
            if number % SHOW_EVERY == 0:
                left(number)
            side.send(message)
            interrupts.check()
        _until(left, STALL_SECONDS, "another message to be done", worker)
        return time.monotonic() - started


def _until(left: Callable[[], int], patience: float, what: str, worker: Worker) -> None:
    """Poll until nothing is left; the number may stay the same for ``patience`` seconds."""
    least, deadline = sys.maxsize, time.monotonic() + patience
    while (now := left()) > 0:
        interrupts.check()
        worker.check()
        if now < least:
            least, deadline = now, time.monotonic() + patience
        if time.monotonic() > deadline:
            raise Stalled(f"waited {patience:.0f} s for {what}")
        time.sleep(POLL_SECONDS)
