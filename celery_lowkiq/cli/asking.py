"""Control of one node, with its answer."""

from __future__ import annotations

import click
from celery import Celery

from celery_lowkiq.rules.text import escaped

from .main import FAILED

#: Seconds that a worker gets to answer.
PATIENCE = 2.0


def ask(app: Celery, control: str, node: str) -> None:
    """Send a control command to one node, and show its answer. Ends the command with status 1 when there is
    none, or it is an error.
    """
    replies = app.control.broadcast(control, destination=[node], reply=True, timeout=PATIENCE, limit=1) or []
    for reply in replies:
        for name, answer in reply.items():
            text = escaped(str(answer.get("ok") or answer.get("error")))
            click.echo(f"{escaped(name)}: {text}", err="ok" not in answer)
            if "ok" in answer:
                return
    if not replies:
        click.echo(f"{escaped(node)} does not answer: `lowkiq nodes` lists the nodes by name", err=True)
    raise click.exceptions.Exit(FAILED)
