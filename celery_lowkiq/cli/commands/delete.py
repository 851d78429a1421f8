"""``delete``: throw jobs away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click

from celery_lowkiq.integration.operations.inspector import Console
from celery_lowkiq.integration.operations.queue import OrderedQueue

from ..bulk import Progress, confirm, in_chunks, report, which, with_progress
from ..params import command, each_id, ids_argument, one_of, queue_argument, yes_option

EXAMPLES = [
    "delete sync_order 42 43",
    "delete sync_order --failed",
    "delete sync_order --morgue --all --yes",
    "delete sync_order --morgue --yes - < ids.txt",
]


@dataclass(frozen=True)
class _Deletion:
    """What is asked for: how many of what, and how it is done."""

    count: int
    kind: str
    act: Callable[[Progress], int]


@command("Throw jobs away.", EXAMPLES)
@queue_argument
@ids_argument
@click.option("--morgue", is_flag=True, help="Dead jobs, not waiting ones.")
@click.option("--all", "all_", is_flag=True, help="All that are dead now; with --morgue.")
@click.option("--failed", is_flag=True, help="All waiting jobs that failed before.")
@yes_option
def delete(
    console: Console, queue: str, ids: tuple[str, ...], morgue: bool, all_: bool, failed: bool, yes: bool
) -> None:
    """Delete waiting jobs of QUEUE, or dead ones. What is being processed goes on.

    IDS may be -: they come from stdin, one a line. The calls of waiting jobs end as REVOKED.
    """
    one_of(ids=ids, all=all_, failed=failed)
    if (all_ and not morgue) or (failed and morgue):
        raise click.UsageError("--all goes with --morgue, and --failed without it")
    what = _deletion(console.queue(queue), ids, morgue, failed)
    confirm(f"Delete {which(ids, what.count, what.kind)} of queue {queue}?", yes)
    done = with_progress("delete", what.count, what.act)
    report(done, "deleted", what.kind, queue, named=bool(ids))


def _deletion(queue: OrderedQueue, ids: tuple[str, ...], morgue: bool, failed: bool) -> _Deletion:
    if ids:
        some = queue.morgue_delete if morgue else queue.delete
        kind = "dead" if morgue else "waiting"
        return _Deletion(len(ids), kind, lambda progress: in_chunks(each_id(ids), some, progress))
    if failed:
        return _Deletion(queue.stats().retries, "failed", queue.delete_all_failed)
    return _Deletion(queue.stats().morgue_length, "dead", queue.morgue_delete_all)
