"""``jobs``: the waiting jobs of a queue."""

from __future__ import annotations

import click

from celery_lowkiq.cli.listing import listing_command
from celery_lowkiq.cli.output import error_text, first_payload
from celery_lowkiq.rules.text import moment

jobs: click.Command = listing_command(
    "jobs",
    "Waiting jobs of a queue.",
    """Waiting jobs of QUEUE.

    By id they come in no order. By perform_in: --from is a time. By retry_count: failed jobs only, --from is
    a number (-1 never failed, 0 failed once).
    """,
    (
        "jobs sync_order --by perform_in",
        "jobs sync_order --by retry_count --from 3 --limit 0",
        "jobs sync_order --prefix 42 --json",
    ),
    ("id", "perform_in", "retry_count"),
    {
        "id": lambda job: job.id,
        "perform_in": lambda job: moment(job.perform_in),
        ">retry_count": lambda job: str(job.retry_count),
        ">payloads": lambda job: str(job.payload_count),
        "first payload": lambda job: first_payload(job.payloads),
        "error": lambda job: error_text(job.error),
    },
)
