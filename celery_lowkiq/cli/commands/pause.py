"""``pause``: begin nothing new."""

from __future__ import annotations

from celery_lowkiq.integration.operations.inspector import Console

from ..params import command
from ..pausing import part_name, part_options, told

EXAMPLES = ["pause sync_order", "pause sync_order --shard 3", "pause sync_order --id 42 --id 43"]


@command("Begin nothing new of a queue, a shard or an id.", EXAMPLES)
@part_options
def pause(console: Console, queue: str, shard: int | None, ids: tuple[str, ...]) -> None:
    """Pause QUEUE, or one shard or some ids of it: within a second no node begins anything new of it.

    What runs is finished; what comes waits. It is kept in Redis until `resume`. An id may be paused before it
    has a job. Status 1 when it was paused before.
    """
    part, ordered = part_name(queue, shard, ids), console.queue(queue)
    changed = ordered.pause_ids(ids) if ids else ordered.pause(shard)
    told(changed, f"paused {part}", f"{part}: paused before")
