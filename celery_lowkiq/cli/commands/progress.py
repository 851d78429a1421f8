"""``progress``: the progress of a tracked group of calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from celery_lowkiq.cli.listing import write_listing
from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import cell, command, json_option, table, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import value_text
from celery_lowkiq.integration.tracking import Tracker
from celery_lowkiq.rules.errors import UnknownTracker
from celery_lowkiq.rules.text import escaped, moment
from celery_lowkiq.rules.tracking import State, TrackedCall, TrackerView
from celery_lowkiq.rules.views import all_items

STATES = [state.value for state in State]
GROUPS = ("id", "name", "opened", ">total", *(f">{state}" for state in STATES), "")
CALLS = ("queue", "id", "state", "updated", "progress", "payload", "last message")
EXAMPLES = [
    "progress",
    "progress 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11",
    "progress 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11 --state failed --state error",
]
#: Seconds between two updates of the bar; the end of the group is shown at once.
LOOK = 0.25


@command("Progress of a tracked group of calls.", EXAMPLES)
@click.argument("id_", metavar="[ID]", required=False)
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="List its calls in this state."
)
@click.option(
    "--limit", default=100, show_default=True, help="Maximum number of lines; 0: all.", type=click.IntRange(0)
)
@json_option
def progress(inspector: Inspector, id_: str | None, states: tuple[str, ...], limit: int, json_: bool) -> None:
    """Progress of the tracked group with this ID; without an ID, of all groups, the latest first.

    On a terminal, a bar moves until all calls have ended. Status 1 if there is no such group.
    """
    if id_ is None:
        write_listing(all_items(inspector.trackers), limit, GROUPS, _group_row, json_)
        return
    try:
        tracker = Tracker.get(inspector.app, id_)
    except UnknownTracker as error:
        write_text(escaped(str(error)), err=True)
        raise click.exceptions.Exit(FAILED) from error
    if states:
        found: Iterator[TrackedCall] = all_items(tracker.jobs, state=states)
        write_listing(found, limit, CALLS, _call_row, json_)
        return
    if sys.stderr.isatty() and not json_:
        _watch(tracker)
    view = tracker.view()
    if json_:
        write_json(view)
    else:
        write_text(table(GROUPS, [_group_row(view)]))


def _watch(tracker: Tracker) -> None:
    """Move the bar until the end, or until Ctrl-C."""
    try:
        with click.progressbar(length=1, label=escaped(tracker.name), file=sys.stderr, show_pos=True) as bar:
            ended = False
            while not ended:
                ended = tracker.wait(LOOK)
                counts = tracker.counts()
                bar.length = max(counts.total, 1)
                bar.update(counts.ended - bar.pos)
                bar.render_progress()
    except KeyboardInterrupt:
        pass


def _group_row(view: TrackerView) -> list[str]:
    counts = view.counts
    numbers = [counts.total, *(getattr(counts, state) for state in STATES)]
    how = "cancelled" if view.cancelled else "done" if view.done else "" if view.closed else "open"
    return [view.id, view.name, moment(view.opened_at), *map(str, numbers), how]


def _call_row(call: TrackedCall) -> list[str]:
    said = cell(call.messages[-1].text) if call.messages else ""
    return [
        call.queue,
        call.id,
        call.state.value,
        moment(call.updated_at),
        _progress(call),
        cell(value_text(call.payload)),
        said,
    ]


def _progress(call: TrackedCall) -> str:
    if call.current is None:
        return ""
    return f"{call.current:g}" if call.total is None else f"{call.current:g}/{call.total:g}"
