"""``reshard``: change the number of shards of a queue."""

from __future__ import annotations

import sys
import threading
import time

import click

from celery_lowkiq.cli.actions import asker, audited
from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import command, queue_argument, reason_option, write_text
from celery_lowkiq.integration.actions import Target, action_of
from celery_lowkiq.integration.audit import Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.models import MAX_SHARDS
from celery_lowkiq.rules.resharding import JOBS_PER_SECOND, MigrationState
from celery_lowkiq.rules.text import count_of, duration, size

EXAMPLES = [
    "reshard sync_order 48 --dry-run",
    "reshard sync_order 48",
    "reshard sync_order 48 --watch",
    "reshard sync_order --watch",
    "reshard sync_order --pause",
    "reshard sync_order --abort",
]
#: Seconds between two looks at the progress.
LOOK = 0.25
NO_WORKER = (
    "no worker that serves queue {queue} is alive, so its jobs do not move. Start one, or repeat the command "
    "that began the move"
)


@command("Change the number of shards.", EXAMPLES)
@queue_argument
@click.argument("shards", type=click.IntRange(1, MAX_SHARDS), required=False)
@click.option("--dry-run", is_flag=True, help="Only show what the move would cost.")
@click.option("--watch", is_flag=True, help="Show each step, until the move has ended.")
@click.option("--pause", is_flag=True, help="Pause the move.")
@click.option("--resume", is_flag=True, help="Resume a paused move.")
@click.option("--abort", is_flag=True, help="End the move: back to the former number.")
@reason_option
def reshard(inspector: Inspector, queue: str, shards: int | None, reason: str, **options: bool) -> None:
    """Change the number of shards of QUEUE to SHARDS.

    Calls and runs go on meanwhile, each id keeps its order, and callers and workers need no restart. The
    command waits until all jobs have moved, and shows the progress on a terminal. Ctrl-C ends only the
    command: the workers of the queue move the rest.

    \b
    reshard QUEUE SHARDS --dry-run  show how many jobs would move, and how long that takes
    reshard QUEUE SHARDS            begin the move, and wait for its end
    reshard QUEUE SHARDS --watch    the same, with a line for each step, for logs and pipes
    reshard QUEUE --watch           wait for the end of a move that has begun
    reshard QUEUE --pause           stop moving jobs: they run where they are
    reshard QUEUE --resume          move the rest
    reshard QUEUE --abort           move back to the former number

    Then declare shards=SHARDS in the code, so that a new queue of this name begins with it.
    """
    verbs = [name for name, is_given in options.items() if is_given]
    verb = verbs[0] if verbs else None
    takes_shards = {None: True, "dry_run": True, "watch": shards is not None}.get(verb, False)
    if len(verbs) > 1 or takes_shards != (shards is not None):
        raise click.UsageError(
            "expected SHARDS, SHARDS --dry-run, SHARDS --watch, --watch, --pause, --resume or --abort"
        )
    ordered = inspector.queue(queue)
    if verb == "dry_run":
        _show_cost(ordered, shards or 0)
    elif verb == "watch" and shards is None:
        _watch(ordered)
    elif verb in ("pause", "resume"):
        _pause(ordered, verb, reason)
    else:
        change = _change("reshard" if shards else "abort_migration", queue, reason, shards)
        audited(change, lambda: _move(ordered, shards, lines=verb == "watch"))


def _change(action: str, queue: str, reason: str, shards: int | None = None) -> Change:
    values = {"shards": shards} if shards else {}
    return Change.of(*asker(), action_of(action), queue, Target(values=values), reason)


def _move(queue: OrderedQueue, shards: int | None, lines: bool) -> int:
    """Move to that number of shards; without one, to the former number. Return how many jobs moved."""
    shards = shards or queue.abort_migration()
    with Progress(queue, lines) as progress:
        moved = queue.reshard(shards, progress.update)
    write_text(f"queue {queue.name} has {shards} shards")
    return moved


def _show_cost(queue: OrderedQueue, shards: int) -> None:
    cost = queue.reshard_cost(shards)
    write_text(f"queue {queue.name} has {cost.former} shards")
    jobs = f"about {cost.leaving} of {count_of(cost.jobs, 'job')}"
    write_text(f"{jobs}, {size(cost.leaving_bytes)}, would change shards")
    took = f"about {duration(cost.seconds)}" if cost.seconds >= 1 else "less than a second"
    write_text(f"{took}, at {JOBS_PER_SECOND} jobs a second; nothing was changed")


def _pause(queue: OrderedQueue, verb: str, reason: str) -> None:
    act = queue.pause_migration if verb == "pause" else queue.resume_migration
    changed = audited(_change(f"{verb}_migration", queue.name, reason), lambda: int(act()))
    unchanged = "" if changed else " before" if verb == "pause" else ": it was not paused"
    write_text(f"the move of queue {queue.name} to other shards: {verb}d{unchanged}")
    if not changed:
        raise click.exceptions.Exit(FAILED)


def _watch(queue: OrderedQueue) -> None:
    """Show the progress until the end, or until Ctrl-C."""
    pause, said = threading.Event(), False
    try:
        with Progress(queue, lines=True) as progress:
            while not progress.is_over:
                progress.update()
                if not (progress.is_over or queue.movers() or said):
                    said = True
                    write_text(NO_WORKER.format(queue=queue.name), err=True)
                pause.wait(LOOK)
    except KeyboardInterrupt:
        return
    write_text(f"queue {queue.name} has {queue.stored_spec().shards} shards")


class Progress:
    """The progress on stderr: a bar on a terminal, else ``lines``, or nothing."""

    def __init__(self, queue: OrderedQueue, lines: bool = False) -> None:
        self._queue = queue
        self._bar = None
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar = click.progressbar(length=1, label=queue.name, file=sys.stderr, show_pos=True)
        self._lines = lines
        self._line = ""
        self._shown_at = 0.0
        #: Whether no migration went on at the last look.
        self.is_over: bool = False

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.render_finish()

    def update(self, _: int = 0) -> None:
        """Show the progress, a few times a second."""
        now = time.monotonic()
        if now - self._shown_at < LOOK or not (self._bar or self._lines):
            return
        self._shown_at = now
        state = self._queue.migration()
        self.is_over = state is None
        if self._bar:
            self._move_bar(state)
        elif state:
            self._write(in_words(state))

    def _move_bar(self, state: MigrationState | None) -> None:
        assert self._bar is not None
        if state:
            self._bar.label = f"{self._queue.name} {_doing(state)}"
            self._bar.length = max(1, state.moved + state.left)
        position = state.moved if state else self._bar.length or 1
        # The length grows with calls, and jobs are to be sorted again after a pause: update() only adds up.
        self._bar.pos = position
        self._bar.render_progress()

    def _write(self, line: str) -> None:
        if line != self._line:
            write_text(line, err=True)
        self._line = line


def _doing(state: MigrationState) -> str:
    if state.paused_since is not None:
        phase = "paused"
    else:
        phase = state.phase.value if state.aborted_at is None else "back"
    return f"{state.former}>{state.shards}, {phase}"


def in_words(state: MigrationState) -> str:
    """Return what is left of a move."""
    if state.paused_since is not None:
        return f"{_doing(state)}: about {count_of(state.left, 'job')} left to move"
    running = sum(shard.in_flight for shard in state.progress)
    transfers = sum(shard.transfers for shard in state.progress)
    count = sum(shard.transfer_bytes for shard in state.progress)
    parts = [f"{count_of(state.left, 'job')} left to sort"]
    if running:
        parts.append(f"{count_of(running, 'running job')} to end first")
    if transfers:
        parts.append(f"{count_of(transfers, 'transfer')} with {count_of(count, 'byte')} on the way")
    return f"{_doing(state)}: {', '.join(parts)}"
