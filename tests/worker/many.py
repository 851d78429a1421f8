"""An app with 100 ordered queues of 24 shards."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task

QUEUES, SHARDS = 100, 24


def work(payloads_by_id: dict[str, list[Any]]) -> None:
    """Nothing."""


def make_app(**settings: Any) -> Celery:
    """A new app with its own tasks."""
    made = Celery("many", set_as_current=False)
    made.conf.update({"task_ignore_result": True, **settings})
    for number in range(QUEUES):
        ordered_task(app=made, shared=False, name=f"many-{number}", shards=SHARDS)(work)
    return made


app = make_app(**json.loads(os.environ.get("PROJ_SETTINGS", "{}")))
