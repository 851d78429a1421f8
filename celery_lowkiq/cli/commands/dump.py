"""``dump``: a queue as a file."""

from __future__ import annotations

import sys

import click

from celery_lowkiq.cli.actions import Progress, with_progress
from celery_lowkiq.cli.output import command, queue_argument, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.text import count_of


@command(
    "Write a queue to stdout.",
    ["dump sync_order > sync_order.jsonl", "dump sync_order | gzip > sync_order.jsonl.gz"],
)
@queue_argument
def dump(inspector: Inspector, queue: str) -> None:
    """Write all jobs of QUEUE to stdout, as JSON lines for `load`: waiting, being processed, and dead.

    It only reads. Jobs that change meanwhile may be missing or be written twice: before you move a queue,
    pause it and stop its callers.
    """
    if sys.stdout is None:
        raise click.ClickException("stdout is closed: redirect it to a file")
    ordered = inspector.queue(queue)
    stats = inspector.overview([queue]).counts(queue)
    length = stats.length + stats.busy + stats.morgue_length

    def act(progress: Progress) -> int:
        out, count = sys.stdout.buffer, 0
        for count, line in enumerate(ordered.dump()):
            out.write(line)
            progress(count)
        out.flush()
        return count - 1

    lines = with_progress("dump", length, act)
    write_text(f"dumped {lines} lines of jobs of queue {queue}", err=True)
    if stats.busy:
        write_text(
            f"{count_of(stats.busy, 'job')} in processing: wait, or they run again after the load", err=True
        )
