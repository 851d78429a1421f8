"""``why``: one answer to why an id does not run."""

from __future__ import annotations

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import command, json_option, queue_argument, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.text import escaped


@command("Why an id is not running.", ["why sync_order 42", "why sync_order 42 --json"])
@queue_argument
@click.argument("id_", metavar="ID")
@json_option
def why(inspector: Inspector, queue: str, id_: str, json_: bool) -> None:
    """Where an ID of QUEUE is, and why it does not run, in words.

    It is done or was never there, waits for its time or behind others, is paused, or dead; its shard has no
    owner, or one that does not answer; or it is running. Status 1 when there is no such job.
    """
    answer = inspector.queue(queue).why(id_)
    if json_:
        write_json(answer)
    else:
        for reason in answer.reasons:
            write_text(escaped(reason.text))
    if answer.kind == "nowhere":
        raise click.exceptions.Exit(FAILED)
