"""``unquiet``: a node takes its part again."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.inspector import Console

from ..asking import ask
from ..params import command


@command("Let a quiet node serve again.", ["unquiet celery@host"])
@click.argument("node")
def unquiet(console: Console, node: str) -> None:
    """Ask NODE to serve ordered queues again, after `quiet`. Status 1 when it does not answer."""
    ask(console.app, "lowkiq_unquiet", node)
