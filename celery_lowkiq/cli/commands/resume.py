"""``resume``: the end of a pause."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Console

from ..bulk import with_progress
from ..output import count_of
from ..params import command
from ..pausing import part_name, part_options, told

EXAMPLES = ["resume sync_order", "resume sync_order --id 42", "resume sync_order --all-ids"]


@command("End a pause.", EXAMPLES)
@part_options
@click.option("--all-ids", is_flag=True, help="All ids that are paused.")
def resume(console: Console, queue: str, shard: int | None, ids: tuple[str, ...], all_ids: bool) -> None:
    """End the pause of QUEUE, or of one shard or some ids: what waited is due at its own time.

    Each is resumed by itself: an id that was paused stays so when its queue is resumed. Status 1 when it was
    not paused.
    """
    part, ordered = part_name(queue, shard, ids), console.queue(queue)
    if all_ids:
        if shard is not None or ids:
            raise click.UsageError("--all-ids goes without --shard and --id")
        changed = with_progress("resume", ordered.paused().ids, ordered.resume_all_ids)
        part = f"{count_of(changed, 'id')} of queue {queue}"
    else:
        changed = ordered.resume_ids(ids) if ids else ordered.resume(shard)
    told(changed, f"resumed {part}", f"{part}: not paused")
