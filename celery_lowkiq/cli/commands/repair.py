"""``repair``: restore lost keys of a queue."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.rules.text import escaped

from ..main import FAILED
from ..params import command, queue_argument

EXAMPLES = ["repair sync_order", "repair sync_order --yes"]


@command("Find damaged keys, and repair them.", EXAMPLES)
@queue_argument
@click.option("--yes", "-y", is_flag=True, help="Repair damaged keys; without it, nothing is changed.")
def repair(inspector: Inspector, queue: str, yes: bool) -> None:
    """Compare the keys of each shard of QUEUE. With --yes, restore lost keys from the others.

    Workers may go on meanwhile. Status 1 if keys are damaged, or cannot be restored.
    """
    ordered = inspector.queue(queue)
    damages = ordered.damages()
    if yes and damages:
        for repaired in ordered.repair():
            click.echo(escaped(f"repaired {repaired.shard}: {repaired.text or 'nothing was to be done'}"))
        damages = ordered.damages()
    for damage in damages:
        click.echo(escaped(f"damaged {damage.shard or queue}: {damage.text}"))
    if damages:
        raise click.exceptions.Exit(FAILED)
    click.echo(f"queue {queue} is sound")
