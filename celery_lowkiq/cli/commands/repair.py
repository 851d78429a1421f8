"""``repair``: restore lost keys of a queue."""

from __future__ import annotations

import click

from celery_lowkiq.cli.actions import asker, audited
from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import command, queue_argument, reason_option, write_text
from celery_lowkiq.integration.audit import Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.text import escaped

EXAMPLES = ["repair sync_order", "repair sync_order --yes"]


@command("Find damaged keys, and repair them.", EXAMPLES)
@queue_argument
@click.option("--yes", "-y", is_flag=True, help="Repair damaged keys; without it, nothing is changed.")
@reason_option
def repair(inspector: Inspector, queue: str, yes: bool, reason: str) -> None:
    """Compare the keys of each shard of QUEUE. With --yes, restore lost keys from the others.

    Workers may go on meanwhile. Status 1 if keys are damaged, or cannot be restored.
    """
    ordered = inspector.queue(queue)
    damages = ordered.damages()
    if yes and damages:
        audited(Change(*asker(), "repair", queue, reason=reason), lambda: _repair(ordered))
        damages = ordered.damages()
    for damage in damages:
        write_text(escaped(f"damaged {damage.shard or queue}: {damage.text}"))
    if damages:
        raise click.exceptions.Exit(FAILED)
    write_text(f"queue {queue} is sound")


def _repair(queue: OrderedQueue) -> int:
    """Return how many shards were looked at."""
    done = queue.repair()
    for repaired in done:
        write_text(escaped(f"repaired {repaired.shard}: {repaired.text or 'nothing was to be done'}"))
    return len(done)
