"""``held``: the ids of a queue that a dead payload holds."""

from __future__ import annotations

from celery_lowkiq.cli.output import command, end_listing, json_option, queue_argument, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.text import escaped, moment
from celery_lowkiq.rules.views import all_items


@command("Ids that a dead payload holds.", ["held sync_order", "held sync_order --json"])
@queue_argument
@json_option
def held(inspector: Inspector, queue: str, json_: bool) -> None:
    """The ids of QUEUE whose newer payloads wait behind a dead one, the longest held first.

    Requeue or delete the dead payload, or let the id go on.
    """
    found = False
    away: dict[str, str] = {}
    for one in all_items(inspector.queue(queue).held_ids, away):
        found = True
        if json_:
            write_json(one)
        else:
            paused = ", and paused" if one.paused else ""
            write_text(f"{escaped(one.id)} since {moment(one.since)}{paused}")
    if not found:
        write_text("[]" if json_ else "none", err=not json_)
    end_listing(away)
