"""``jobs``: the waiting jobs of a queue."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Console
from celery_lowkiq.integration.operations.queue import ShownJob

from ..listing import PAYLOADS, bounds, listing_options, pages, write_listing
from ..output import clock_time, error_text, first_payload, job_json
from ..params import When, command, json_option, queue_argument

HEADER = ("id", "perform_in", ">retry_count", ">payloads", "first payload", "error")
EXAMPLES = [
    "jobs sync_order --by perform_in",
    "jobs sync_order --by retry_count --from 3 --limit 0",
    "jobs sync_order --prefix 42 --json",
]


@command("Waiting jobs of a queue.", EXAMPLES)
@queue_argument
@click.option("--by", type=click.Choice(["id", "perform_in", "retry_count"]), default="id", show_default=True)
@listing_options
@json_option
def jobs(
    console: Console,
    queue: str,
    by: str,
    from_: When | None,
    reverse: bool,
    prefix: str,
    limit: int,
    json_: bool,
) -> None:
    """Waiting jobs of QUEUE.

    By id they come in no order. By perform_in: --from is a time. By retry_count: failed jobs only, --from is
    a number (-1 never failed, 0 failed once).
    """
    read = console.queue(queue).jobs
    options = {"by": by, "prefix": prefix, "reverse": reverse, "payload_limit": PAYLOADS}
    found = pages(read, **options, **bounds(from_, reverse))
    write_listing(found, limit, HEADER, _row, job_json if json_ else None)


def _row(job: ShownJob) -> list[str]:
    return [
        job.id,
        clock_time(job.perform_in),
        str(job.retry_count),
        str(job.payload_count),
        first_payload(job.payloads),
        error_text(job.error),
    ]
