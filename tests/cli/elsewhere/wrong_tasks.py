"""Cannot be imported."""

from __future__ import annotations

from celery_lowkiq import ordered_task


@ordered_task(shards=0)
def sync_order(payloads_by_id):
    """Mirrors an order."""
