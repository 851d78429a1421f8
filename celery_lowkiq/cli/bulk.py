"""Helpers for actions on many jobs: a question before, and a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import islice

import click

from celery_lowkiq.integration.operations.action_parts import MAX_IDS
from celery_lowkiq.rules.errors import ShardsAway
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.text import escaped

from .main import FAILED
from .output import write_text

#: Called with the number of jobs done so far.
Progress = Callable[[int], None]


def confirm(question: str, yes: bool) -> None:
    """Ask for a confirmation unless ``yes``. Ends with status 1 after a no, with 2 without a terminal."""
    if yes:
        return
    question = escaped(question)
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Not a terminal: pass --yes to confirm")
    if not click.confirm(question, err=True):
        write_text("nothing was done", err=True)
        raise click.exceptions.Exit(FAILED)


def with_progress(
    label: str, length: int, act: Callable[[Progress], int], interrupted: Progress = lambda _: None
) -> int:
    """Return ``act(progress)``. On a terminal, a bar on stderr shows the progress.

    After Ctrl-C, ``interrupted`` gets the progress, and KeyboardInterrupt goes on.
    """
    with ExitStack() as stack:
        bar, reached = None, 0
        if length > 0 and sys.stderr is not None and sys.stderr.isatty():
            bar = stack.enter_context(click.progressbar(length=length, label=label, file=sys.stderr))

        def note(done: int) -> None:
            nonlocal reached
            reached = done
            if bar:
                bar.update(done - bar.pos)

        try:
            return act(note)
        except KeyboardInterrupt:
            stack.close()
            interrupted(reached)
            raise


def in_chunks(ids: Iterable[str], act: Callable[[list[str], Progress], int], progress: Progress) -> int:
    """Return the sum of ``act(ids, progress)`` over chunks of the ids. Raises ShardsAway at the end."""
    left, done, left_out = iter(ids), 0, dict[ShardRef, str]()
    while part := list(islice(left, MAX_IDS)):
        before = done
        try:
            done += act(part, lambda count, before=before: progress(before + count))  # type: ignore[misc]
        except ShardsAway as error:
            done += error.count
            left_out |= error.shards
    if left_out:
        raise ShardsAway(done, left_out)
    return done
