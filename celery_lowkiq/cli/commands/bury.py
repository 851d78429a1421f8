"""``bury``: give failed jobs up."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Console

from ..bulk import confirm, in_chunks, report, which, with_progress
from ..params import command, each_id, ids_argument, one_of, queue_argument, yes_option


@command("Give failed jobs up.", ["bury sync_order --failed", "bury sync_order 42 43"])
@queue_argument
@ids_argument
@click.option("--failed", is_flag=True, help="All waiting jobs that failed before.")
@yes_option
def bury(console: Console, queue: str, ids: tuple[str, ...], failed: bool, yes: bool) -> None:
    """Move waiting jobs of QUEUE to the morgue: some IDS (-: from stdin), or all that failed before.

    Their calls end as FAILURE. `requeue` brings the jobs back.
    """
    one_of(ids=ids, failed=failed)
    ordered = console.queue(queue)
    count, kind = (len(ids), "waiting") if ids else (ordered.stats().retries, "failed")
    confirm(f"Move {which(ids, count, kind)} of queue {queue} to the morgue?", yes)
    if ids:
        done = with_progress("bury", count, lambda progress: in_chunks(each_id(ids), ordered.kill, progress))
    else:
        done = with_progress("bury", count, ordered.kill_all_failed)
    report(done, "buried", kind, queue, named=bool(ids))
