"""``reshard``: change the number of shards of an empty queue."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.rules.layout import MAX_SHARDS

from ..params import command, queue_argument

EXAMPLES = ["reshard sync_order 48"]


@command("Change the number of shards.", EXAMPLES)
@queue_argument
@click.argument("shards", type=click.IntRange(1, MAX_SHARDS))
def reshard(inspector: Inspector, queue: str, shards: int) -> None:
    """Change the number of shards of QUEUE to SHARDS, while it has no waiting, processing or dead job.

    Callers and workers follow without a restart.
    """
    inspector.queue(queue).reshard(shards)
    click.echo(f"queue {queue} has {shards} shards")
