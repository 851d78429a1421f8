"""``run-now``: wait no longer."""

from __future__ import annotations

from celery_lowkiq.integration.console import Console

from ..bulk import confirm, jobs, report, with_progress
from ..params import command, queue_argument, yes_option


@command("Make waiting jobs due now.", ["run-now sync_order", "run-now sync_order --yes"])
@queue_argument
@yes_option
def run_now(console: Console, queue: str, yes: bool) -> None:
    """Make all waiting jobs of QUEUE due now, retries and those that were to run later."""
    ordered = console.queue(queue)
    count = ordered.stats().length
    confirm(f"Make {jobs(count, 'waiting')} of queue {queue} due now?", yes)
    done = with_progress("run-now", count, ordered.perform_all_now)
    report(done, "made due", "later", queue, named=False)
