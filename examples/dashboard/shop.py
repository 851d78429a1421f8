"""The Celery app whose queues the dashboard shows; your project has its own."""

from __future__ import annotations

import os

from celery import Celery

from celery_lowkiq import ordered_task

app = Celery("shop", broker=os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0"))


@ordered_task(app=app, shared=False, shards=8)
def sync_order(payloads_by_id):
    """Write the latest state of each order."""
