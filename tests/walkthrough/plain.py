"""The plain tasks of the walkthrough. The page shows their source."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun

from tests.walkthrough.recorder import URL, ServiceDown, lane, ledger, note, orders, rates, slow_service

app = Celery("plain", broker=URL)
app.conf.worker_prefetch_multiplier = 1
app.conf.task_ignore_result = True
app.conf.worker_cancel_long_running_tasks_on_connection_loss = False
# Of the trace with kill -9. Celery's defaults: an hour, looked after each 100 s.
app.conf.broker_transport_options = {
    "visibility_timeout": 4,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}


@app.task
def save_order(order, change):
    slow_service(order, change)
    orders.save(order, change)


@app.task(autoretry_for=(ServiceDown,), default_retry_delay=1.2)
def sync_order(order, change):
    slow_service(order, change)
    orders.save(order, change)


@app.task(acks_late=True)
def ship_order(order, change):
    slow_service(order, change)
    orders.save(order, change)


@app.task
def update_order(order, change):
    slow_service(order, change)
    orders.save(order, change)


@app.task
def post_entry(account, entry):
    rate = rates[entry["currency"]]
    ledger.post(account, entry, rate)


@app.task
def track_order(order, change):
    slow_service(order, change)
    orders.save(order, change)


@task_prerun.connect
def begins(task_id: str, args: list[Any], **_: Any) -> None:
    """A run begins."""
    order, change = args
    note("start", run=task_id, lane=lane(), p={order: [change["version"]]})


@task_postrun.connect
def ends(task_id: str, state: str | None, **_: Any) -> None:
    """A run has ended: SUCCESS, RETRY or FAILURE."""
    note("end", run=task_id, ok=state == "SUCCESS")
