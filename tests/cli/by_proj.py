"""An app whose task finds its id in an argument."""

from __future__ import annotations

from celery import Celery

from celery_lowkiq import ordered_task

app = Celery("by_proj", set_as_current=False)


@ordered_task(
    app=app, shared=False, bind=True, name="save order", shards=1, by="order_id", queue_name="save_order"
)
def save_order(self, order_id, status="paid"):
    """Saves an order."""
