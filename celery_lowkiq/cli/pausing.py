"""What ``pause`` and ``resume`` have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .main import FAILED
from .output import count_of
from .params import queue_argument

F = TypeVar("F", bound=Callable[..., Any])


def part_options(function: F) -> F:
    """QUEUE, --shard, --id."""
    function = click.option("--id", "ids", multiple=True, help="Only this id; may be given again.")(function)
    function = click.option("--shard", type=int, help="Only the shard of this number.")(function)
    return queue_argument(function)


def part_name(queue: str, shard: int | None, ids: tuple[str, ...]) -> str:
    """In words. Ends the command with status 2 when it is two things."""
    if shard is not None and ids:
        raise click.UsageError("give --shard or --id, not both")
    if ids:
        return f"{count_of(len(ids), 'id')} of queue {queue}"
    return f"queue {queue}" if shard is None else f"shard {shard} of queue {queue}"


def told(changed: bool | int, done: str, not_done: str) -> None:
    """Say what was done, or end the command with status 1."""
    click.echo(done if changed else not_done)
    if not changed:
        raise click.exceptions.Exit(FAILED)
