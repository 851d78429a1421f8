"""A plain task, and the same one made ordered: only the line of the decorator differs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task

from .mirror import Mirror

#: Names the file of the mirror that a worker writes to.
MIRROR_VARIABLE = "REPLICA_MIRROR"
#: ``lowkiq_run_in`` of a worker: "thread", or "process".
RUN_IN_VARIABLE = "REPLICA_RUN_IN"
#: ``lowkiq_url`` of a cluster; empty where the broker's Redis is the store.
STORE_VARIABLE = "REPLICA_STORE"
#: Seconds of pretended work before each write.
WORK = (0.001, 0.030)

app = Celery("replica", broker="redis://localhost:6379/0")
app.conf.task_default_queue = "examples.replica"  # not the queue of another program that uses this Redis
app.conf.task_ignore_result = True
app.conf.lowkiq_url = os.environ.get(STORE_VARIABLE) or None
app.conf.lowkiq_run_in = os.environ.get(RUN_IN_VARIABLE, "thread")


@app.task
def mirror_plain(path: str, change: Mapping[str, Any]) -> None:
    """Write one change of a file."""
    work()
    mirror().apply(path, change)


@ordered_task(by="path", latest=True, shards=24)
def mirror_ordered(path: str, change: Mapping[str, Any]) -> None:
    """The same function; of the changes of a path that wait, only the newest runs."""
    work()
    mirror().apply(path, change)


def work() -> None:
    """Take a small random time, as a call to another service does."""
    time.sleep(random.uniform(*WORK))


@cache
def mirror() -> Mirror:
    """The mirror that this worker writes to."""
    return Mirror(Path(os.environ[MIRROR_VARIABLE]))
