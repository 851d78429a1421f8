"""Ordered tasks that name no app: Celery registers those in the order of a set of functions."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task

#: Lowkiq's README deals these shards to three threads.
SHARDS = {"A": 3, "B": 4, "C": 1, "D": 2}


def work(payloads_by_id: dict[str, list[Any]]) -> None:
    """Nothing."""


for name, shards in SHARDS.items():
    ordered_task(name=name, shards=shards)(work)

app = Celery("dealing")
app.conf.update({"lowkiq_lease_seconds": 1.0, **json.loads(os.environ.get("PROJ_SETTINGS", "{}"))})
