"""``requeue``: get dead jobs going again."""

from __future__ import annotations

from functools import partial

import click

from celery_lowkiq.integration.operations.inspector import Console

from ..bulk import in_chunks, report, with_progress
from ..params import command, each_id, ids_argument, one_of, queue_argument


@command(
    "Get dead jobs going again.",
    ["requeue sync_order --all", "requeue sync_order 42 43", "requeue sync_order - < ids.txt"],
)
@queue_argument
@ids_argument
@click.option("--all", "all_", is_flag=True, help="All that are dead now.")
@click.option("--force", is_flag=True, help="Also what is older than what was done for its id (drop_stale).")
def requeue(console: Console, queue: str, ids: tuple[str, ...], all_: bool, force: bool) -> None:
    """Move dead jobs of QUEUE back to the queue: due now, as if they had never failed.

    IDS may be -: they come from stdin, one a line.
    """
    one_of(ids=ids, all=all_)
    ordered = console.queue(queue)
    if all_:
        length = ordered.stats().morgue_length
        done = with_progress("requeue", length, partial(ordered.morgue_queue_up_all, force=force))
    else:
        queue_up = partial(ordered.morgue_queue_up, force=force)
        done = with_progress(
            "requeue", len(ids), lambda progress: in_chunks(each_id(ids), queue_up, progress)
        )
    report(done, "requeued", "dead", queue, named=not all_)
