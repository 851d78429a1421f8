"""``failures``: the failures of a queue, in groups."""

from __future__ import annotations

import click

from celery_lowkiq.integration.operations.failures_mixin import FailureGroup
from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.rules.text import escaped, moment

from ..main import FAILED
from ..output import cell, end_listing, table, write_json
from ..params import command, json_option, queue_argument

NO_GROUPS = "the master with the groups of the queue is away"
HEADER = ("failure", ">count", ">failing", ">dead", "first seen", "last seen", "error", "where")


@command(
    "Failures of a queue, in groups.",
    ["failures sync_order", "failures sync_order 9f86d081884c7d65", "failures sync_order --json"],
)
@queue_argument
@click.argument("failure", required=False, default="")
@json_option
def failures(inspector: Inspector, queue: str, failure: str, json_: bool) -> None:
    """Failures of QUEUE in groups: the same type, message and place in your code; or one FAILURE with an
    example.

    In messages, * stands for numbers and ids. count: runs that failed. failing, dead: jobs of the group now.
    `requeue`, `bury` and `delete` take a group as --failure.
    """
    found = inspector.queue(queue).failures(failure)
    if json_:
        for one in found.groups:
            write_json(one)
    elif failure and found.groups:
        _write_group(found.groups[0])
    elif found.groups:
        click.echo(table(HEADER, map(_row, found.groups)))
    else:
        click.echo("none", err=True)
    if found.searched < found.jobs:
        click.echo(f"failing and dead: searched {found.searched:,} of {found.jobs:,} jobs", err=True)
    if found.unknown:
        click.echo(f"{NO_GROUPS}: only jobs of now are counted", err=True)
    end_listing(found.away)
    if failure and not found.groups:
        raise click.exceptions.Exit(FAILED)


def _row(one: FailureGroup) -> list[str]:
    counts = (str(number) for number in (one.count, one.failing, one.dead))
    times = ("" if at is None else moment(at) for at in (one.first_seen, one.last_seen))
    return [one.fingerprint, *counts, *times, cell(one.error), one.where]


def _write_group(one: FailureGroup) -> None:
    for name, value in zip(HEADER, _row(one), strict=True):
        click.echo(f"{name.lstrip('>') + ':':12} {escaped(value)}")
    click.echo("example:")
    for line in one.example.splitlines():
        click.echo(f"  {escaped(line)}")
