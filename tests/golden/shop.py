"""The app of the scene: a task for each state that a job can be in."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.bootstep import remote_control

# A command is no long one because the machine is busy.
remote_control.REPLY = 20.0

app = Celery("shop", set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    lowkiq_lease_seconds=1.0,
    lowkiq_metrics_port=0,
    **json.loads(os.environ.get("SHOP_SETTINGS", "{}")),
)


@ordered_task(app=app, shared=False, name="held", shards=1, max_retries=0, when_dead="hold")
def held(payloads_by_id: dict[str, list[Any]]) -> None:
    """Each job dies, and holds what comes after it."""
    raise ValueError("no such order")


@ordered_task(app=app, shared=False, name="failing", shards=1, max_retries=5, retry_in=100_000)
def failing(payloads_by_id: dict[str, list[Any]]) -> None:
    """Each job fails, and waits for long."""
    raise KeyError("warehouse")


@ordered_task(app=app, shared=False, name="mail", shards=1, max_retries=0, batch_size=5)
def mail(payloads_by_id: dict[str, list[Any]]) -> None:
    """Jobs end, or die."""
    if any("bad" in payloads for payloads in payloads_by_id.values()):
        raise RuntimeError("mailbox\nfull")


@ordered_task(app=app, shared=False, name="slow", shards=2, max_run=0.1)
def slow(payloads_by_id: dict[str, list[Any]]) -> None:
    """Runs until the test makes the file."""
    while not Path(os.environ["SHOP_GATE"]).exists():
        time.sleep(0.01)


@ordered_task(app=app, shared=False, name="moved", shards=1)
def moved(payloads_by_id: dict[str, list[Any]]) -> None:
    """No worker serves it."""
