"""``run-now``: wait no longer."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Console
from celery_lowkiq.rules.text import escaped

from ..bulk import confirm, in_chunks, jobs, report, with_progress
from ..params import STDIN, command, each_id, ids_argument, queue_argument, yes_option


@command("Make waiting jobs due now.", ["run-now sync_order 42", "run-now sync_order --yes"])
@queue_argument
@ids_argument
@yes_option
def run_now(console: Console, queue: str, ids: tuple[str, ...], yes: bool) -> None:
    """Make waiting jobs of QUEUE due now, retries and those that were to run later: some IDS (-: from stdin),
    or all.
    """
    ordered = console.queue(queue)
    if ids:
        done = with_progress(
            "run-now", len(ids), lambda progress: in_chunks(each_id(ids), ordered.perform_now, progress)
        )
    else:
        count = ordered.stats().length
        confirm(f"Make {jobs(count, 'waiting')} of queue {queue} due now?", yes)
        done = with_progress("run-now", count, ordered.perform_all_now)
    if len(ids) == 1 and ids != (STDIN,) and not done:
        waits = ordered.job(ids[0]).waiting is not None
        said = f"job {escaped(ids[0])} is due already" if waits else f"no job {escaped(ids[0])} waits"
        click.echo(said, err=True)
    report(done, "made due", "later", queue, named=bool(ids))
