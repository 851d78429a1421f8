"""The app of both releases, and its caller. It stands alone: each release imports a copy of it.

Only what both releases have may be used here.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from celery import Celery

from celery_lowkiq import ordered_task

app = Celery("upgrade", broker=os.environ["UPGRADE_URL"], backend=os.environ["UPGRADE_URL"])
app.conf.update(
    broker_connection_retry_on_startup=True, lowkiq_lease_seconds=float(os.environ["UPGRADE_LEASE"])
)
_lock = threading.Lock()


def note(**fields):
    """Append one whole line to the ledger."""
    with _lock, open(os.environ["UPGRADE_LEDGER"], "a", buffering=1) as ledger:
        ledger.write(json.dumps({"pid": os.getpid(), **fields}) + "\n")


def work(payloads_by_id):
    """A run: when it began and ended, and with which numbers."""
    began = time.monotonic()
    time.sleep(0.002)
    ended = time.monotonic()
    for job_id, numbers in payloads_by_id.items():
        note(event="run", id=job_id, numbers=numbers, began=began, ended=ended)


@ordered_task(app=app, name="plain", shards=6, ignore_result=True)
def plain(payloads_by_id):
    """Calls without records."""
    work(payloads_by_id)


@ordered_task(app=app, name="recorded", shards=6, retry_in=0.01, drop_stale=True, max_payloads_per_run=3)
def recorded(payloads_by_id):
    """Calls with results, policies, and failures."""
    work(payloads_by_id)
    if sum(map(sum, payloads_by_id.values())) % 7 == 0 and os.urandom(1)[0] < 128:
        raise ValueError("now and then")


def call(prefix, ids):
    """Call both tasks with ascending numbers, until a line says to stop."""
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopped.set()), daemon=True).start()
    number = 0
    while not stopped.wait(0.002):
        number += 1
        for task in (plain, recorded):
            task.delay(f"{task.name}-{prefix}-{number % ids}", number)
    note(event="called", prefix=prefix, count=number)


if __name__ == "__main__":
    call(sys.argv[1], int(sys.argv[2]))
