"""``morgue``: the dead jobs of a queue."""

from __future__ import annotations

import click

from celery_lowkiq.cli.listing import listing_command
from celery_lowkiq.cli.output import error_text, first_payload
from celery_lowkiq.rules.text import moment

morgue: click.Command = listing_command(
    "morgue",
    "Dead jobs of a queue.",
    """Dead jobs of QUEUE, sorted by id or by the time of their last death (--from is a time then).""",
    (
        "morgue sync_order --by updated_at --reverse",
        "morgue sync_order --by updated_at --from -1h --json",
        "morgue sync_order --prefix 42",
    ),
    ("id", "updated_at"),
    {
        "id": lambda job: job.id,
        "updated_at": lambda job: moment(job.updated_at),
        ">payloads": lambda job: str(job.payload_count),
        "first payload": lambda job: first_payload(job.payloads),
        "error": lambda job: error_text(job.error),
    },
)
