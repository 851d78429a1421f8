"""``bury``: give failed jobs up."""

from __future__ import annotations

import click

from celery_lowkiq.integration.console import Console

from ..bulk import confirm, jobs, report, with_progress
from ..params import command, one_of, queue_argument, yes_option


@command("Give failed jobs up.", ["bury sync_order --failed"])
@queue_argument
@click.option("--failed", is_flag=True, help="All waiting jobs that failed before.")
@yes_option
def bury(console: Console, queue: str, failed: bool, yes: bool) -> None:
    """Move waiting jobs of QUEUE that failed before to the morgue; their calls end as FAILURE.

    `requeue` brings them back.
    """
    one_of(failed=failed)
    ordered = console.queue(queue)
    count = ordered.stats().retries
    confirm(f"Move {jobs(count, 'failed')} of queue {queue} to the morgue?", yes)
    report(with_progress("bury", count, ordered.kill_all_failed), "buried", "failed", queue, named=False)
