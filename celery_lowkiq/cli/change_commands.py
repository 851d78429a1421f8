"""Commands that change jobs: those made from the table of actions, calls, dumps, repairs, moves."""

from __future__ import annotations

import getpass
import inspect
import json
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any, BinaryIO

import click
from celery import Celery

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import (
    STDIN,
    Time,
    When,
    command,
    each_id,
    find_tracker,
    ids_argument,
    queue_argument,
    reason_option,
    stdin,
    write_text,
    yes_option,
)
from celery_lowkiq.integration.actions import (
    FILTERS,
    MAX_IDS,
    VERBS,
    Action,
    Target,
    Verb,
    action_of,
    filter_names,
)
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.dump_format import MAX_LINE_BYTES
from celery_lowkiq.rules.errors import ShardsUnreachable
from celery_lowkiq.rules.models import MAX_SHARDS, ShardRef
from celery_lowkiq.rules.resharding import JOBS_PER_SECOND, MigrationState
from celery_lowkiq.rules.text import count_of, duration, escaped, size

# Changes by commands, in the audit log with the user of the system.


def audited(change: Change, act: Callable[[], int]) -> int:
    """Return ``act()``, a count of jobs, with an entry before and after it. Raises what ``act`` raises."""
    return Audit(click.get_current_context().obj.app).around(change, act)


def asker() -> tuple[str, str]:
    """The user of the system who runs the command, and its machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return user, f"command line of {platform.node()}"


# Helpers for actions on many jobs: a question before, and a progress bar.

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
    """Return the sum of ``act(ids, progress)`` over chunks of ids. Raises ShardsUnreachable at the end."""
    left, done, left_out = iter(ids), 0, dict[ShardRef, str]()
    while part := list(islice(left, MAX_IDS)):
        before = done
        try:
            done += act(part, lambda count, before=before: progress(before + count))  # type: ignore[misc]
        except ShardsUnreachable as error:
            done += error.count
            left_out |= error.shards
    if left_out:
        raise ShardsUnreachable(done, left_out)
    return done


# The commands of actions: each is made from its verb.

#: Seconds that a worker gets to answer.
PATIENCE = 2.0
#: Options that choose an action of a verb, with their help.
OPTIONS = {
    "all": "All jobs that exist now.",
    "all-ids": "All paused ids.",
    "failed": "All waiting jobs that failed before.",
    "force": "Also payloads older than the last run (drop_stale).",
    "morgue": "Dead jobs, not waiting ones.",
}
COMMANDS = {
    verb.name.replace("_", "-"): verb
    for verb in VERBS
    if verb.node_reply or any(one.on_command_line for one in verb.actions)
}


def command_of(verb: Verb) -> click.Command:
    run = _node_command(verb) if verb.node_reply else _queue_command(verb)
    run.__doc__ = verb.text
    return command(verb.summary, verb.examples)(run)


def _node_command(verb: Verb) -> Callable[..., None]:
    def run(inspector: Inspector, node: str) -> None:
        _control(inspector.app, f"lowkiq_{verb.name}", node)

    return click.argument("node")(run)


def _control(app: Celery, name: str, node: str) -> None:
    """Send a control command to one node and write its answer. Ends with status 1 without a good answer."""
    replies = app.control.broadcast(name, destination=[node], reply=True, timeout=PATIENCE, limit=1) or []
    for reply in replies:
        for answering, answer in reply.items():
            text = escaped(str(answer.get("ok") or answer.get("error")))
            write_text(f"{escaped(answering)}: {text}", err="ok" not in answer)
            if "ok" in answer:
                return
    if not replies:
        write_text(f"{escaped(node)} does not answer: `lowkiq nodes` lists the nodes by name", err=True)
    raise click.exceptions.Exit(FAILED)


def _queue_command(verb: Verb) -> Callable[..., None]:
    actions = [one for one in verb.actions if one.on_command_line]

    def run(
        inspector: Inspector,
        queue: str,
        reason: str,
        ids: tuple[str, ...] = (),
        yes: bool = False,
        **given: Any,
    ) -> None:
        action = _chosen(actions, ids, given)
        values = {one.name: given[one.name] for one in action.takes if given[one.name] is not None}
        if given.get("dry_run"):
            _preview(action, inspector.queue(queue), values)
        else:
            _act(action, inspector.queue(queue), ids, values, yes, reason)

    return queue_argument(_with_options(run, actions))


def _with_options(run: Callable[..., None], actions: list[Action]) -> Callable[..., None]:
    made = reason_option(run)
    if any(one.asks_on_command_line for one in actions):
        made = yes_option(made)
    if any(one.optional for one in actions):
        made = click.option("--dry-run", is_flag=True, help="Only count the jobs that match.")(made)
    for name in sorted({name for one in actions for name in one.all_options}, reverse=True):
        made = click.option(f"--{name}", is_flag=True, help=OPTIONS[name])(made)
    for one in reversed({one.name: one for action in actions for one in action.takes}.values()):
        kind = int if one.kind is int else str
        made = click.option(f"--{one.name}", type=kind, help=f"The {one.text}.")(made)
    if any(one.scope.ids for one in actions):
        made = ids_argument(made)
    return made


def _chosen(actions: list[Action], ids: tuple[str, ...], given: Mapping[str, Any]) -> Action:
    """Return the action that the arguments choose. Exit with status 2 if they choose no action."""
    options = {name for name in OPTIONS if given.get(name.replace("-", "_"))}
    names = {name for name, value in given.items() if value is not None and not isinstance(value, bool)}
    for one in actions:
        if set(one.all_options) == options and one.suits(names | ({"ids"} if ids else set())):
            return one
    filters = {one.name for one in FILTERS}
    if names & {one.name for action in actions for one in action.optional} and not names & filters:
        raise click.UsageError(f"--rate and --limit go with {filter_names('--', 'or')}")
    raise click.UsageError(f"expected one of: {', '.join(map(_usage, actions))}")


def _usage(action: Action) -> str:
    words = [f"--{name}" for name in action.all_options]
    words += [f"--{one.name} N" for one in action.takes if one not in action.optional]
    words += [f"--error (or {', '.join(f'--{one.name}' for one in FILTERS[1:])})"] if action.optional else []
    return " ".join([*words, *(["IDS"] if action.scope.ids else [])]) or "QUEUE alone"


def _preview(action: Action, queue: OrderedQueue, values: Mapping[str, Any]) -> None:
    if not (action.optional and action.plan):
        raise click.UsageError(f"--dry-run goes with {filter_names('--', 'or')}")
    write_text(action.plan(queue, action.target(queue, (), values)))


def _act(
    action: Action,
    queue: OrderedQueue,
    ids: tuple[str, ...],
    values: Mapping[str, Any],
    yes: bool,
    reason: str,
) -> None:
    asked = Target(ids, values)
    if action.optional:
        asked = action.target(queue, (), values)
    total = action.total(queue, asked)
    if action.asks_on_command_line:
        confirm(_question(action, queue.name, asked, total), yes)

    def some(part: list[str], progress: Progress) -> int:
        return action.run(queue, action.target(queue, part, values), progress)

    def act(progress: Progress) -> int:
        return in_chunks(each_id(ids), some, progress) if ids else some([], progress)

    def interrupted(count: int) -> None:
        said = action.said(queue.name, asked, count)
        write_text(f"interrupted: {said}, and at most one step more; the others stay as they were", err=True)

    change = Change.of(*asker(), action, queue.name, asked, reason)
    count, left_out = _counted(
        lambda: audited(change, lambda: with_progress(action.verb, total, act, interrupted))
    )
    write_text(action.said(queue.name, asked, count))
    if left_out is not None:
        raise left_out
    if not (count or action.scope.total or action.optional):
        _end_unchanged(queue, ids)


def _counted(act: Callable[[], int]) -> tuple[int, ShardsUnreachable | None]:
    """Return the number of changes, and the error that names the shards that were left out."""
    try:
        return act(), None
    except ShardsUnreachable as error:
        return error.count, error


def _end_unchanged(queue: OrderedQueue, ids: tuple[str, ...]) -> None:
    if len(ids) == 1 and ids != (STDIN,):
        write_text(escaped(queue.why(ids[0]).text), err=True)
    raise click.exceptions.Exit(FAILED)


def _question(action: Action, queue: str, asked: Target, total: int) -> str:
    if asked.ids == (STDIN,):
        return f"{action.label}: the {action.scope.kind} {action.scope.unit}s of queue {queue} from stdin?"
    return action.question(queue, asked, total)


# ``push``: one call, by hand.

PUSH_EXAMPLES = [
    'push sync_order 42 \'{"status": "paid", "version": 7}\'',
    "push sync_order 42 7 --score 3 --at +10m",
    "push sync_order 42 - < payload.json",
]


@command("Call a task by hand.", PUSH_EXAMPLES)
@queue_argument
@click.argument("id_", metavar="ID")
@click.argument("payload")
@click.option("--score", type=float, help="Order among the payloads of the id; by default now.")
@click.option("--at", type=Time(), help="Not before this time; by default now.")
def push(
    inspector: Inspector, queue: str, id_: str, payload: str, score: float | None, at: When | None
) -> None:
    """Call the task of QUEUE: PAYLOAD (JSON; - reads it from stdin) for ID. Prints the call's task id."""
    job: dict[str, Any] = {"id": id_, "payload": _read(payload), "score": score}
    job["perform_in"] = at
    task = inspector.task(queue)
    if task.by is not None:
        raise click.UsageError(_by_arguments(task))
    (result,) = task.perform_async([job], results=True)
    write_text(result.id)


def _by_arguments(task: Any) -> str:
    """Ways to call a task whose calls have arguments in place of id and payload."""
    app = click.get_current_context().find_root().params.get("app")
    words = ["celery", "-A", app if isinstance(app, str) else "proj", "call", task.name]
    return (
        f"push: {task.name} has by=, so its calls have arguments, {inspect.signature(task.run)}: "
        f"{shlex.join(words)} --args='[...]'"
    )


def _read(text: str) -> Any:
    try:
        return json.loads(stdin().read() if text == STDIN else text)
    except RecursionError as error:
        raise click.BadParameter("PAYLOAD has too many levels") from error
    except ValueError as error:
        raise click.BadParameter(
            f"PAYLOAD is not JSON ({error}): a text needs its own quotes, '\"paid\"'"
        ) from error


# ``dump``: a queue as a file.


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
    stats = ordered.stats()
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


# ``load``: a queue from a file.

LOAD_EXAMPLES = ["load sync_order < sync_order.jsonl", "load orders --renamed < sync_order.jsonl"]


@command("Read a dump from stdin into a queue.", LOAD_EXAMPLES)
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


# ``repair``: restore lost keys of a queue.

REPAIR_EXAMPLES = ["repair sync_order", "repair sync_order --yes"]


@command("Find damaged keys, and repair them.", REPAIR_EXAMPLES)
@queue_argument
@click.option("--yes", "-y", is_flag=True, help="Repair damaged keys; without it, nothing is changed.")
@reason_option
def repair(inspector: Inspector, queue: str, yes: bool, reason: str) -> None:
    """Compare the keys of each shard of QUEUE. With --yes, restore lost keys from the others.

    Workers may go on meanwhile. Status 1 if keys are damaged, or cannot be restored.
    """
    ordered = inspector.queue(queue)
    damages = ordered.damages()
    if yes and damages:
        audited(Change(*asker(), "repair", queue, reason=reason), lambda: _repair_shards(ordered))
        damages = ordered.damages()
    for damage in damages:
        write_text(escaped(f"damaged {damage.shard or queue}: {damage.text}"))
    if damages:
        raise click.exceptions.Exit(FAILED)
    write_text(f"queue {queue} is sound")


def _repair_shards(queue: OrderedQueue) -> int:
    """Return how many shards were looked at."""
    done = queue.repair()
    for repaired in done:
        write_text(escaped(f"repaired {repaired.shard}: {repaired.text or 'nothing was to be done'}"))
    return len(done)


# ``reshard``: change the number of shards of a queue.

RESHARD_EXAMPLES = [
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


@command("Change the number of shards.", RESHARD_EXAMPLES)
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
    with MoveProgress(queue, lines) as progress:
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
        with MoveProgress(queue, lines=True) as progress:
            while not progress.is_over:
                progress.update()
                if not (progress.is_over or queue.movers() or said):
                    said = True
                    write_text(NO_WORKER.format(queue=queue.name), err=True)
                pause.wait(LOOK)
    except KeyboardInterrupt:
        return
    write_text(f"queue {queue.name} has {queue.stored_spec().shards} shards")


class MoveProgress:
    """The progress on stderr: a bar on a terminal, else ``lines``, or nothing."""

    def __init__(self, queue: OrderedQueue, lines: bool = False) -> None:
        self._queue = queue
        self._bar = None
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar = click.progressbar(length=1, label=queue.name, file=sys.stderr, show_pos=True)
        self._lines = lines
        self._line = ""
        self._shown_at = 0.0
        #: True if no migration went on at the last look.
        self.is_over: bool = False

    def __enter__(self) -> MoveProgress:
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


# ``cancel``: cancel the waiting calls of a tracker.

CANCEL_EXAMPLES = ["cancel 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11", "cancel 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11 --yes"]


@command("Cancel the waiting calls of a tracker.", CANCEL_EXAMPLES)
@click.argument("id_", metavar="ID")
@yes_option
@reason_option
def cancel(inspector: Inspector, id_: str, yes: bool, reason: str) -> None:
    """Cancel the tracker with this ID: its waiting calls end as failed, running calls go on.

    Their results become REVOKED when the calls are due. Status 1 if there is no such tracker.
    """
    tracker = find_tracker(inspector, id_)
    waiting = tracker.counts().enqueued
    confirm(f"Cancel {count_of(waiting, 'waiting call')} of {escaped(tracker.name)}?", yes)
    change = Change(*asker(), "cancel", f"tracker {tracker.name}", (tracker.id,), reason=reason)
    done = audited(change, lambda: with_progress("cancel", waiting, tracker.cancel))
    write_text(f"cancelled {count_of(done, 'call')} of {escaped(tracker.name)}")
