"""The ordered tasks of the walkthrough. The page shows their source."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task
from tests.walkthrough.recorder import URL, lane, ledger, note, orders, rates, slow_service

app = Celery("ordered", broker=URL)
app.conf.task_ignore_result = True
# Of the trace with kill -9; the default is 10 s.
app.conf.lowkiq_lease_seconds = 2


@ordered_task(shards=2)
def save_order(payloads_by_id):
    for order, changes in payloads_by_id.items():
        slow_service(order, changes[-1])
        orders.save(order, changes[-1])


@ordered_task(shards=2, retry_in=1.2)
def sync_order(payloads_by_id):
    for order, changes in payloads_by_id.items():
        slow_service(order, changes[-1])
        orders.save(order, changes[-1])


@ordered_task(shards=2)
def ship_order(payloads_by_id):
    for order, changes in payloads_by_id.items():
        slow_service(order, changes[-1])
        orders.save(order, changes[-1])


@ordered_task(shards=1, drop_stale=True)
def update_order(payloads_by_id):
    for order, changes in payloads_by_id.items():
        slow_service(order, changes[-1])
        orders.save(order, changes[-1])


@ordered_task(by="account", when_dead="hold", max_retries=0, shards=2)
def post_entry(account, entry):
    rate = rates[entry["currency"]]
    ledger.post(account, entry, rate)


@ordered_task(by="order", shards=2)
def track_order(order, change):
    slow_service(order, change)
    orders.save(order, change)


def versions(value: Any) -> list[int]:
    """The versions within payloads, in their order."""
    if isinstance(value, Mapping):
        if "version" in value:
            return [value["version"]]
        return [found for part in value.values() for found in versions(part)]
    if isinstance(value, list | tuple):
        return [found for part in value for found in versions(part)]
    return []


def record_run(task: Any, batch: Any, call: Callable[[], Any]) -> Any:
    """The middleware that writes begin and end of a run down."""
    run = uuid.uuid4().hex
    note("start", run=run, lane=lane(), p={str(job.id): versions(list(job.payloads)) for job in batch})
    try:
        found = call()
    except BaseException as error:
        note("end", run=run, ok=False, why=repr(error))
        raise
    note("end", run=run, ok=True)
    return found


app.conf.lowkiq_server_middlewares = [record_run]
