"""Helpers for actions on many jobs: a question before, and a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice

import click

from celery_lowkiq.integration.operations.action_parts import MAX_IDS

from .main import FAILED

#: Called with the number of jobs done so far.
Progress = Callable[[int], None]


def confirm(question: str, yes: bool) -> None:
    """Ask for a confirmation unless ``yes``. Ends with status 1 after a no, with 2 without a terminal."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Not a terminal: pass --yes to confirm")
    if not click.confirm(question, err=True):
        click.echo("nothing was done", err=True)
        raise click.exceptions.Exit(FAILED)


def with_progress(label: str, length: int, act: Callable[[Progress], int]) -> int:
    """Return ``act(progress)``. On a terminal, a bar on stderr shows the progress."""
    if length <= 0 or sys.stderr is None or not sys.stderr.isatty():
        return act(lambda _: None)
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        return act(lambda done: bar.update(done - bar.pos))


def in_chunks(ids: Iterable[str], act: Callable[[list[str], Progress], int], progress: Progress) -> int:
    """Return the sum of ``act(ids, progress)`` over chunks of the ids."""
    left, done = iter(ids), 0
    while part := list(islice(left, MAX_IDS)):
        before = done
        done += act(part, lambda count, before=before: progress(before + count))  # type: ignore[misc]
    return done
