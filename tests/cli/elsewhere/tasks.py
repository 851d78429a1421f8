"""Imported by nothing but the apps beside it."""

from __future__ import annotations

from celery_lowkiq import ordered_task


@ordered_task(shards=1)
def sync_order(payloads_by_id):
    """Mirrors an order."""
