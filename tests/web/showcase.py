"""An app that looks like somebody's: for the screenshots and the tests in a browser."""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from celery_lowkiq import ordered_task, track
from celery_lowkiq.integration.safe_logging import format_traceback
from celery_lowkiq.rules.views import DAY, SPANS, Sample, Span
from celery_lowkiq.store.keys import history_key, shard_keys

STATES = ("created", "paid", "packed", "shipped", "delivered")
#: Ids that always fail, and that take long.
FAILING, SLOW = "SO-2200", "SO-2400"
#: How often a failing one has been retried when it begins to wait for long.
LOOKED_AT = 3


class CarrierUnavailable(Exception):
    """The parcel service does not answer."""

    __module__ = "shop"


def format_error(error: BaseException) -> str:
    """With a traceback that does not tell where this file lies."""
    return format_traceback(error).replace(str(Path(__file__).parent), "/srv/shop")


def _pause(retry_count: int) -> float:
    """Three quick tries, then a long pause to be looked at."""
    return 0.2 if retry_count < LOOKED_AT else 900.0


def make_app(broker_url: str) -> Celery:
    """A shop that keeps its orders, invoices, stock and search index in step with others."""
    app = Celery("shop", set_as_current=False, broker=broker_url)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        lowkiq_lease_seconds=3.0,
        lowkiq_format_error=format_error,
    )
    ordered = {"app": app, "shared": False}

    @ordered_task(**ordered, name="sync_order", shards=24, retry_in=_pause, max_retries=8)
    def sync_order(payloads_by_id: dict[str, list[Any]]) -> None:
        for order_id, payloads in payloads_by_id.items():
            if order_id.startswith(SLOW):
                time.sleep(float(os.environ.get("SHOWCASE_SLOW", "60")))
            if order_id.startswith(FAILING):
                raise CarrierUnavailable(
                    f"503 from api.carrier.example for version {payloads[-1]['version']}"
                )

    @ordered_task(**ordered, name="send_invoice", shards=8, max_retries=0)
    def send_invoice(payloads_by_id: dict[str, list[Any]]) -> None:
        for invoice_id in payloads_by_id:
            if invoice_id.startswith("INV-9"):
                raise ValueError(f"customer of {invoice_id} has no address")

    @ordered_task(**ordered, name="update_stock", shards=16, drop_stale=True)
    def update_stock(payloads_by_id: dict[str, list[Any]]) -> None: ...

    @ordered_task(**ordered, name="index_product", shards=8)
    def index_product(payloads_by_id: dict[str, list[Any]]) -> None: ...

    return app


def fill(app: Celery) -> None:
    """Something of everything; the same each time."""
    dice = random.Random(7)
    sync_order, send_invoice = app.tasks["sync_order"], app.tasks["send_invoice"]
    stock, index = app.tasks["update_stock"], app.tasks["index_product"]
    index.ordered_queue.pause()
    for number in range(640):
        order = {
            "status": dice.choice(STATES),
            "version": dice.randint(1, 9),
            "total": dice.randint(900, 90000),
        }
        sync_order.apply_async((f"SO-{10000 + number}", order), countdown=30 + number * dice.random() * 20)
    for version in (3, 4, 5):
        order = {"status": STATES[version - 1], "version": version, "lines": [{"sku": "TEA-01", "count": 2}]}
        sync_order.apply_async((FAILING, order))
    with track("invoices of November", app) as tracker:
        for number in range(5):
            sync_order.delay(f"{FAILING}-{number}", {"status": "paid", "version": number})
            send_invoice.apply_async((f"INV-9{number:03}", {"total": 1200 + number}), tracker=tracker)
            send_invoice.apply_async((f"INV-1{number:03}", {"total": 80}), countdown=3600, tracker=tracker)
        # On other lanes than the failing one.
    for number in (0, 2):
        sync_order.delay(f"{SLOW}-{number}", {"status": "packed", "version": 1})
    for number in range(230):
        stock.apply_async((f"TEA-{number:02}", {"delta": -1}), countdown=dice.randint(600, 9000))
        index.delay(f"P-{number}", {"title": "Earl Grey", "price": 790})
    sync_order.ordered_queue.pause(job_id="SO-10007")
    sync_order.ordered_queue.pause(shard=17)


def remember(app: Celery, client: redis.Redis) -> None:
    """A day of history, as if workers had been at it."""
    now = time.time()
    rates = {"sync_order": 26.0, "send_invoice": 7.0, "update_stock": 15.0, "index_product": 4.0}
    for queue, rate in rates.items():
        spec = app.tasks[queue].queue_spec
        meta = shard_keys(spec.shard_refs()[0])["meta"]
        pasts = {span: past(span, now, rate, queue == "sync_order") for span in SPANS.values()}
        # The counters say the same.
        total = client.hincrby(meta, "processed", pasts[DAY][-1].processed)
        lost = client.hincrby(meta, "failed", pasts[DAY][-1].failed)
        for span, samples in pasts.items():
            ring = {
                span.slot(one.at) % span.samples: f"{span.slot(one.at)} {one.at:.3f} "
                f"{total - one.processed} {lost - one.failed} {one.lag:.1f}"
                for one in samples
            }
            client.delete(history_key(queue, span))
            client.hset(history_key(queue, span), mapping=ring)
        minute = int(now - 70) // 60
        counted = ",".join([str(total), *("0" * (spec.shards - 1))])
        client.hset(history_key(queue), f"shards {minute % 2}", f"{minute} {now - 70:.3f} {counted}")


def past(span: Span, now: float, rate: float, failing: bool) -> list[Sample]:
    """Samples of a span until now, the latest first, with what was processed and failed since then."""
    dice = random.Random(11)
    samples, processed, failed = [], 0, 0
    for ago in range(span.step, span.seconds, span.step):
        share = ago / span.seconds
        peak = 40 * (1 - abs(share - 0.33) * 9)
        samples.append(Sample(now - ago, processed, failed, max(peak, dice.random())))
        processed += int(rate * span.step * (1.0 + 0.55 * math.sin(share * 5.1) + dice.random() * 0.5))
        if failing and 0.25 < share < 0.42:
            failed += dice.randint(0, 9 * span.step)
    return samples


#: For the worker's process.
app = make_app(os.environ.get("SHOWCASE_BROKER", "redis://localhost:1/0"))
