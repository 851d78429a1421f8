"""``morgue``: the dead jobs of a queue."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Console
from celery_lowkiq.integration.operations.queue import ShownDeadJob

from ..listing import PAYLOADS, bounds, listing_options, pages, write_listing
from ..output import clock_time, error_text, first_payload, job_json
from ..params import When, command, json_option, queue_argument

HEADER = ("id", "updated_at", ">payloads", "first payload", "error")
EXAMPLES = [
    "morgue sync_order --by updated_at --reverse",
    "morgue sync_order --by updated_at --from -1h --json",
    "morgue sync_order --prefix 42",
]


@command("Dead jobs of a queue.", EXAMPLES)
@queue_argument
@click.option("--by", type=click.Choice(["id", "updated_at"]), default="id", show_default=True)
@listing_options
@json_option
def morgue(
    console: Console,
    queue: str,
    by: str,
    from_: When | None,
    reverse: bool,
    prefix: str,
    limit: int,
    json_: bool,
) -> None:
    """Dead jobs of QUEUE, sorted by id or by the time of their last death (--from is a time then)."""
    read = console.queue(queue).morgue
    options = {"by": by, "prefix": prefix, "reverse": reverse, "payload_limit": PAYLOADS}
    found = pages(read, **options, **bounds(from_, reverse))
    write_listing(found, limit, HEADER, _row, job_json if json_ else None)


def _row(job: ShownDeadJob) -> list[str]:
    count = str(job.payload_count)
    return [job.id, clock_time(job.updated_at), count, first_payload(job.payloads), error_text(job.error)]
