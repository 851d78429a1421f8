"""``audit``: the changes that people made."""

from __future__ import annotations

from itertools import islice

import click

from celery_lowkiq.cli.output import command, json_option, write_json, write_text
from celery_lowkiq.integration.audit import Audit, line_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.text import moment
from celery_lowkiq.rules.views import all_items


@command("Changes that people made.", ["audit", "audit --limit 1000 --json"])
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Most entries.")
@json_option
def audit(inspector: Inspector, limit: int, json_: bool) -> None:
    """The changes that people made by the dashboard, the API, Flower and commands, the latest first."""
    entry = None
    for entry in islice(all_items(Audit(inspector.app).read), limit):
        if json_:
            write_json(entry)
        else:
            write_text(f"{moment(entry.at)} {line_of(entry)}")
    if entry is None:
        write_text("[]" if json_ else "none", err=not json_)
