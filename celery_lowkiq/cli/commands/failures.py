"""``failures``: the failures of a queue, or of all, in groups."""

from __future__ import annotations

from collections.abc import Mapping

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import (
    cell,
    command,
    end_listing,
    json_option,
    optional_queue_argument,
    table,
    write_json,
    write_text,
)
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import FailureGroup, Failures
from celery_lowkiq.rules.text import escaped, moment

NO_GROUPS = "the master with the groups of the queue is away"
HEADER = ("queue", "failure", ">count", ">failing", ">dead", "first seen", "last seen", "error", "where")


@command(
    "Failures, in groups.",
    ["failures", "failures sync_order", "failures sync_order 9f86d081884c7d65", "failures sync_order --json"],
)
@optional_queue_argument
@click.argument("failure", required=False, default="")
@json_option
def failures(inspector: Inspector, queue: str | None, failure: str, json_: bool) -> None:
    """Failures of QUEUE, or of all queues, in groups: the same type, message and place in your code; or one
    FAILURE of QUEUE with an example.

    In messages, * stands for numbers and ids. count: runs that failed. failing, dead: jobs of the group now.
    `requeue`, `bury` and `delete` take a group as --failure.
    """
    names = inspector.queues() if queue is None else [queue]
    found = {name: inspector.queue(name).failures(failure) for name in names}
    groups = [(name, one) for name, of_queue in found.items() for one in of_queue.groups]
    if json_:
        for name, one in groups:
            write_json({"queue": name, **vars(one)})
    elif failure and groups:
        _write_group(*groups[0])
    elif groups:
        write_text(table(HEADER, (_row(*each) for each in groups)))
    else:
        write_text("none", err=True)
    _write_limits(found)
    end_listing({address: shards for one in found.values() for address, shards in one.away.items()})
    if failure and not groups:
        raise click.exceptions.Exit(FAILED)


def _write_limits(found: Mapping[str, Failures]) -> None:
    searched, jobs = (sum(getattr(one, name) for one in found.values()) for name in ("searched", "jobs"))
    if searched < jobs:
        write_text(f"failing and dead: searched {searched:,} of {jobs:,} jobs", err=True)
    if any(one.unknown for one in found.values()):
        write_text(f"{NO_GROUPS}: only jobs of now are counted", err=True)


def _row(queue: str, one: FailureGroup) -> list[str]:
    counts = (str(number) for number in (one.count, one.failing, one.dead))
    times = ("" if at is None else moment(at) for at in (one.first_seen, one.last_seen))
    return [queue, one.fingerprint, *counts, *times, cell(one.error), one.where]


def _write_group(queue: str, one: FailureGroup) -> None:
    for name, value in zip(HEADER, _row(queue, one), strict=True):
        write_text(f"{name.lstrip('>') + ':':12} {escaped(value)}")
    write_text("example:")
    for line in one.example.splitlines():
        write_text(f"  {escaped(line)}")
