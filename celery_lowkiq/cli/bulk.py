"""Actions on many jobs: a question before, a progress bar meanwhile, and what was done in the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import click

from .main import FAILED
from .output import count_of
from .params import STDIN

#: Called with how many jobs are done so far.
Progress = Callable[[int], None]

#: So many ids are handed on at a time.
CHUNK = 1000


def confirm(question: str, yes: bool) -> None:
    """Ask, unless the answer was given. Ends the command: with status 1 after a no, with 2 when nobody can
    be asked.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked without a terminal: say --yes")
    if not click.confirm(question, err=True):
        click.echo("nothing was done", err=True)
        raise click.exceptions.Exit(FAILED)


def jobs(count: int, kind: str = "") -> str:
    """``1 dead job``, ``2 dead jobs``."""
    return count_of(count, f"{kind} job".lstrip())


def which(ids: Sequence[str], count: int, kind: str) -> str:
    """What a question is about: ids that come from stdin are not counted."""
    return f"the {kind} jobs that stdin names" if tuple(ids) == (STDIN,) else jobs(count, kind)


def with_progress(label: str, length: int, act: Callable[[Progress], int]) -> int:
    """What ``act(progress)`` returns; on a terminal a bar moves on stderr."""
    if length <= 0 or sys.stderr is None or not sys.stderr.isatty():
        return act(lambda _: None)
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        return act(lambda done: bar.update(done - bar.pos))


def in_chunks(ids: Iterable[str], act: Callable[[list[str], Progress], int], progress: Progress) -> int:
    """The sum of what ``act(ids, progress)`` returns, for a bounded part of the ids at a time."""
    left, done = iter(ids), 0
    while part := list(islice(left, CHUNK)):
        before = done
        done += act(part, lambda count, before=before: progress(before + count))  # type: ignore[misc]
    return done


def report(done: int, verb: str, kind: str, queue: str, named: bool) -> None:
    """Say what was done. Ends the command with status 1 when none of the ids that were named was there."""
    click.echo(f"{verb} {jobs(done, kind)} of queue {queue}")
    if named and not done:
        raise click.exceptions.Exit(FAILED)
