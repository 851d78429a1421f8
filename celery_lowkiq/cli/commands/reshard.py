"""``reshard``: change the number of shards of a queue."""

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
    """Move QUEUE to SHARDS shards, while calls and workers go on.

    Each id keeps its order, and callers and workers follow without a restart. If the command is ended, the
    workers of the queue go on; repeat it to wait for the end.
    """
    inspector.queue(queue).reshard(shards)
    click.echo(f"queue {queue} has {shards} shards")
