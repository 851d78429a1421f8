"""The two tasks. Both work for a moment, then write; only the decorator differs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task

from .mirror import Mirror

#: Names the file of the mirror that a worker writes to.
MIRROR_VARIABLE = "REPLICA_MIRROR"
#: Seconds of pretended work before each write.
WORK = (0.001, 0.030)

app = Celery("replica", broker="redis://localhost:6379/0")
app.conf.task_default_queue = "examples.replica"  # not the queue of whoever else uses that Redis
app.conf.task_ignore_result = True


@app.task
def mirror_one(path: str, payload: Mapping[str, Any]) -> None:
    """The plain task: one message, one call."""
    work()
    mirror().apply(path, payload)


@ordered_task(shards=24)
def mirror_merged(payloads_by_path: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The ordered task: one run gets all waiting messages of a path, the newest version last."""
    for path, payloads in payloads_by_path.items():
        work()
        mirror().apply(path, payloads[-1])


def work() -> None:
    """Take a small random time, as a call to another service does."""
    time.sleep(random.uniform(*WORK))


@cache
def mirror() -> Mirror:
    """The mirror that this worker writes to."""
    return Mirror(Path(os.environ[MIRROR_VARIABLE]))
