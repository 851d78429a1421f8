"""``load``: a queue from a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import click

from celery_lowkiq.cli.actions import Progress, asker, audited, with_progress
from celery_lowkiq.cli.output import command, queue_argument, reason_option, stdin, write_text
from celery_lowkiq.integration.audit import Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.dumps import MAX_LINE_BYTES

EXAMPLES = ["load sync_order < sync_order.jsonl", "load orders --renamed < sync_order.jsonl"]


@command("Read a dump from stdin into a queue.", EXAMPLES)
@queue_argument
@click.option("--renamed", is_flag=True, help="Accept the dump of a queue with another name.")
@click.option("--again", is_flag=True, help="Load all lines, also those loaded within the last week.")
@reason_option
def load(inspector: Inspector, queue: str, renamed: bool, again: bool, reason: str) -> None:
    """Merge what `dump` wrote, from stdin, into QUEUE.

    If it was interrupted, run it again with the same file: it skips the loaded lines, also of jobs that have
    run meanwhile. No job is lost or doubled.
    """
    ordered = inspector.queue(queue)
    source = stdin().buffer
    read = 0

    def lines() -> Iterator[bytes]:
        nonlocal read
        while line := source.readline(MAX_LINE_BYTES):
            read += len(line)
            yield line

    def act(progress: Progress) -> int:
        done = ordered.load(lines(), renamed=renamed, again=again, progress=lambda _: progress(read))
        write_text(f"loaded {done.new} of {done.lines} lines into queue {queue}")
        return done.new

    change = Change(*asker(), "load", queue, reason=reason)
    audited(change, lambda: with_progress("load", _size(source), act))


def _size(source: BinaryIO) -> int:
    """The size of a file in bytes; 0 for a pipe."""
    try:
        return os.fstat(source.fileno()).st_size
    except (OSError, ValueError):
        return 0
