"""A task that remembers its calls."""

from __future__ import annotations

from celery_lowkiq import ordered_task


def recorder(app, **options):
    calls = []

    @ordered_task(app=app, **options)
    def record(payloads_by_id):
        calls.append(payloads_by_id)
        return sorted(payloads_by_id)

    return record, calls
