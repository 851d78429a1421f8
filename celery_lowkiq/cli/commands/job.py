"""``job``: where an id is, and what it has."""

from __future__ import annotations

import time

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import (
    command,
    json_option,
    payload_text,
    queue_argument,
    write_json,
    write_text,
)
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import ShownDeadJob, ShownJob, places_json
from celery_lowkiq.rules.text import escaped, moment, relative

#: Names, the longest of which is "processing".
COLUMN = 12


@command("Where an id is, and what it has.", ["job sync_order 42", "job sync_order 42 --json"])
@queue_argument
@click.argument("id_", metavar="ID")
@json_option
def job(inspector: Inspector, queue: str, id_: str, json_: bool) -> None:
    """Where an ID of QUEUE is: waiting, being processed, in the morgue; with payloads, scores and last error.

    Status 1 when it is nowhere.
    """
    ordered = inspector.queue(queue).raw(decoded=True) if json_ else inspector.queue(queue)
    places, why = ordered.job(id_), ordered.why(id_)
    found = {"waiting": places.waiting, "processing": places.processing, "dead": places.dead}
    if json_:
        write_json(places_json(places, why, ordered.tries(id_)))
    else:
        owner = why.facts.owner.name if why.facts.owner else "none"
        known = {"id": id_, "queue": queue, "shard": why.facts.shard.index, "owner": owner}
        write_text("\n".join(f"{name:{COLUMN}}{escaped(str(value))}" for name, value in known.items()))
        for name, place in found.items():
            if place is not None:
                write_text(_text(name, place))
    if not any(found.values()):
        write_text(f"queue {queue} has no job {escaped(id_)}", err=True)
        raise click.exceptions.Exit(FAILED)


def _text(name: str, place: ShownJob | ShownDeadJob) -> str:
    when = place.updated_at if isinstance(place, ShownDeadJob) else place.perform_in
    lines = [f"{name:{COLUMN}}{moment(when)}, {relative(when, time.time())}"]
    if isinstance(place, ShownJob):
        lines.append(f"  retry_count {place.retry_count}")
        if place.priority:
            lines.append(f"  priority    {place.priority}")
        if place.held:
            lines.append("  held        by a dead payload of its id")
        if place.paused:
            lines.append("  paused      its id is paused")
    if place.error is not None:
        first, *rest = place.error.splitlines() or [""]
        lines.append(f"  error       {escaped(first)}")
        lines += [f"    {escaped(line)}" for line in rest]
    lines.append(f"  payloads    {place.payload_count}")
    lines += [f"    score {payload.score!r}  {payload_text(payload, None)}" for payload in place.payloads]
    left = place.payload_count - len(place.payloads)
    return "\n".join([*lines, f"    and {left} more"] if left > 0 else lines)
