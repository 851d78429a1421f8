"""``push``: one call, by hand."""

from __future__ import annotations

import inspect
import json
import shlex
from typing import Any

import click

from celery_lowkiq.cli.output import STDIN, Time, When, command, queue_argument, stdin, write_text
from celery_lowkiq.integration.inspector import Inspector

EXAMPLES = [
    'push sync_order 42 \'{"status": "paid", "version": 7}\'',
    "push sync_order 42 7 --score 3 --at +10m",
    "push sync_order 42 - < payload.json",
]


@command("Call a task by hand.", EXAMPLES)
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
    """How to call a task whose calls have arguments in place of id and payload."""
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
