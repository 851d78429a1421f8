"""The three releases of an app whose task becomes ordered, and plain again: by the variable RELEASE."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from celery import Celery

from celery_lowkiq import ordered_task

RELEASES = ("plain", "ordered", "back")
_lock = threading.Lock()


def make_app(release: str, url: str) -> Celery:
    """An app of one release."""
    app = Celery(f"switching {release}", broker=url, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True, lowkiq_lease_seconds=2.0, task_ignore_result=True
    )
    if release == "back":
        app.conf.lowkiq_plain = {"save_order"}

    def save_order(order_id: int, number: int) -> None:
        began = time.monotonic()
        time.sleep(0.002)
        line = {"id": order_id, "n": number, "began": began, "ended": time.monotonic(), "release": release}
        with _lock, open(os.environ["SWITCHING_LEDGER"], "a", buffering=1) as ledger:
            ledger.write(json.dumps(line) + "\n")

    if release == "plain":
        app.task(save_order, name="save_order", shared=False, acks_late=True)
    else:
        ordered: Any = ordered_task(
            by="order_id", name="save_order", app=app, shared=False, shards=8, acks_late=True
        )
        ordered(save_order)
    return app


if "RELEASE" in os.environ:
    app = make_app(os.environ["RELEASE"], os.environ["SWITCHING_URL"])
