"""The app of the tests of signed jobs: orders that are paid, refunded and receipted."""

from __future__ import annotations

import json
import os
from pathlib import Path

from celery import Celery

from celery_lowkiq import ordered_task

OLD, NEW = "the secret of october", "the secret of november"
KEYS = {"2026-11": NEW}


def make_app(url, ledger=None, **settings):
    app = Celery("signing", broker=url, backend=url, set_as_current=False)
    app.conf.update(lowkiq_poll_interval=0.1, lowkiq_signing="require", lowkiq_signing_keys=KEYS)
    # Nothing but the signature keeps a pickle from being decoded.
    app.conf.update(accept_content=["json", "pickle"])
    app.conf.update(settings, worker_hijack_root_logger=False)

    def note(task, payloads_by_id):
        for job_id, payloads in payloads_by_id.items():
            for payload in payloads:
                with open(ledger, "a") as lines:
                    lines.write(json.dumps([task, job_id, payload]) + "\n")

    @ordered_task(app=app, shared=False, name="pay", shards=2)
    def pay(payloads_by_id):
        note("pay", payloads_by_id)
        return "paid"

    @ordered_task(app=app, shared=False, name="refund", shards=2, when_dead="hold")
    def refund(payloads_by_id):
        note("refund", payloads_by_id)

    @ordered_task(app=app, shared=False, name="receipt", by="order", shards=2)
    def receipt(order, text):
        note("receipt", {order: [text]})

    return app


if "SIGNING_URL" in os.environ:
    app = make_app(
        os.environ["SIGNING_URL"],
        Path(os.environ["SIGNING_LEDGER"]),
        **json.loads(os.environ.get("SIGNING_SETTINGS", "{}")),
    )
