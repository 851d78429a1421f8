"""The app that the command line is tested on; its Redis comes from CELERY_BROKER_URL."""

from __future__ import annotations

from celery import Celery

from celery_lowkiq import ordered_task

app = Celery("proj", set_as_current=False)
app.conf.update(broker_connection_retry_on_startup=True, task_ignore_result=True)


@ordered_task(app=app, shared=False, name="sync_order", shards=4, batch_size=100)
def sync_order(payloads_by_id):
    """Mirrors an order."""


@ordered_task(app=app, shared=False, name="send_mail", shards=2, drop_stale=True)
def send_mail(payloads_by_id):
    """Sends a mail."""


@ordered_task(app=app, shared=False, name="keyed", shards=1, key=lambda payload: payload["id"])
def keyed(payload_by_id):
    """Finds the id in the payload."""


@ordered_task(app=app, shared=False, name="answering", shards=1, ignore_result=False)
def answering(payloads_by_id):
    """Somebody waits for what it returns."""
