"""``paused``: the pauses of a queue."""

from __future__ import annotations

from collections.abc import Iterator

from celery_lowkiq.cli.output import command, end_listing, json_option, queue_argument, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.text import escaped, moment
from celery_lowkiq.rules.views import Paused, all_items


@command("Pauses of a queue.", ["paused sync_order", "paused sync_order --json"])
@queue_argument
@json_option
def paused(inspector: Inspector, queue: str, json_: bool) -> None:
    """The pauses of QUEUE, of its shards and of its ids, with their times."""
    ordered = inspector.queue(queue)
    found, now = False, ordered.paused()
    away = dict(now.away)
    for what, since in _paused(ordered, now, away):
        found = True
        if json_:
            write_json({**what, "since": since})
        else:
            ((kind, name),) = what.items()
            write_text(f"{kind} {escaped(str(name))} since {moment(since)}")
    if not found:
        write_text("[]" if json_ else "none", err=not json_)
    end_listing(away)


def _paused(
    queue: OrderedQueue, now: Paused, away: dict[str, str]
) -> Iterator[tuple[dict[str, str | int], float]]:
    if now.queue is not None:
        yield {"queue": queue.name}, now.queue
    for shard, since in sorted(now.shards.items()):
        yield {"shard": shard}, since
    for one in all_items(queue.paused_ids, away):
        yield {"id": one.id}, one.since
