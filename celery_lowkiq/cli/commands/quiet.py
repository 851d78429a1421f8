"""``quiet``: a node takes nothing new."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Console

from ..asking import ask
from ..params import command


@command("Let a node finish and take nothing new.", ["quiet celery@host"])
@click.argument("node")
def quiet(console: Console, node: str) -> None:
    """Ask NODE to finish what it runs of ordered queues, and to take nothing new: others get its shards.

    Its ordinary tasks go on. `unquiet`, or a restart, ends it. Status 1 when the node does not answer.
    """
    ask(console.app, "lowkiq_quiet", node)
