"""Commands that act on jobs, made from the table of actions."""

from __future__ import annotations

import getpass
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any

import click
from celery import Celery

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import (
    STDIN,
    command,
    each_id,
    ids_argument,
    queue_argument,
    reason_option,
    write_text,
    yes_option,
)
from celery_lowkiq.integration.actions import FILTERS, MAX_IDS, VERBS, Action, Target, Verb, filter_names
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.errors import ShardsAway
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.text import escaped

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
    """The command of a verb."""
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


def _counted(act: Callable[[], int]) -> tuple[int, ShardsAway | None]:
    """What was changed, and the error that names the shards that were left out."""
    try:
        return act(), None
    except ShardsAway as error:
        return error.count, error


def _end_unchanged(queue: OrderedQueue, ids: tuple[str, ...]) -> None:
    if len(ids) == 1 and ids != (STDIN,):
        write_text(escaped(queue.why(ids[0]).text), err=True)
    raise click.exceptions.Exit(FAILED)


def _question(action: Action, queue: str, asked: Target, total: int) -> str:
    if asked.ids == (STDIN,):
        return f"{action.label}: the {action.scope.kind} {action.scope.unit}s of queue {queue} from stdin?"
    return action.question(queue, asked, total)
