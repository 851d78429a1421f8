"""``cancel``: cancel the waiting calls of a tracked group."""

from __future__ import annotations

import click

from celery_lowkiq.cli.actions import asker, audited, confirm, with_progress
from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import command, reason_option, write_text, yes_option
from celery_lowkiq.integration.audit import Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.errors import UnknownTracker
from celery_lowkiq.rules.text import count_of, escaped

EXAMPLES = ["cancel 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11", "cancel 0d6c1bd6c5d24d1f8b1f3f3a3c9f5a11 --yes"]


@command("Cancel the waiting calls of a tracked group.", EXAMPLES)
@click.argument("id_", metavar="ID")
@yes_option
@reason_option
def cancel(inspector: Inspector, id_: str, yes: bool, reason: str) -> None:
    """Cancel the tracked group with this ID: its waiting calls end as failed, running calls go on.

    Their results become REVOKED when the calls are due. Status 1 if there is no such group.
    """
    try:
        tracker = inspector.tracker(id_)
    except UnknownTracker as error:
        write_text(escaped(str(error)), err=True)
        raise click.exceptions.Exit(FAILED) from error
    waiting = tracker.counts().enqueued
    confirm(f"Cancel {count_of(waiting, 'waiting call')} of {escaped(tracker.name)}?", yes)
    change = Change(*asker(), "cancel", f"tracker {tracker.name}", (tracker.id,), reason=reason)
    done = audited(change, lambda: with_progress("cancel", waiting, tracker.cancel))
    write_text(f"cancelled {count_of(done, 'call')} of {escaped(tracker.name)}")
