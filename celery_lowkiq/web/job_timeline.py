"""The timeline of one id, with the changes that the audit log has of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery_lowkiq.integration.operations.action_parts import SHARD, Action, Target
from celery_lowkiq.integration.operations.actions import ACTIONS
from celery_lowkiq.integration.operations.audit import AuditEntry
from celery_lowkiq.rules.diagnosis import DiagnosisFacts
from celery_lowkiq.rules.text import count_of
from celery_lowkiq.rules.timeline import Entry, ShownChange, timeline
from celery_lowkiq.rules.views import Try

#: Entries of the audit log that are searched, the latest.
SEARCHED = 300


def timeline_of(facts: DiagnosisFacts, tries: Sequence[Try], log: Iterable[AuditEntry]) -> tuple[Entry, ...]:
    """Return the events of an id, the latest first; ``log``: the latest SEARCHED entries of the audit log."""
    found = (_shown(entry, facts) for entry in log)
    return timeline(facts, tries, [change for change in found if change])


def _shown(entry: AuditEntry, facts: DiagnosisFacts) -> ShownChange | None:
    """The change of an entry, if it is done and concerns the id or all of its queue or shard."""
    action = ACTIONS.get(entry.action)
    if action is None or entry.state != "done" or entry.jobs == 0 or entry.queue != facts.shard.queue:
        return None
    whole = not entry.id_count
    concerned = entry.shard in (None, facts.shard.index) if whole else facts.id in entry.ids
    if not concerned or (entry.filter and _was_dead_throughout(action, entry, facts)):
        return None
    text = _text(action, entry) if whole else _text_of_ids(action, entry)
    return ShownChange(entry.at, text[:1].upper() + text[1:], entry.user, entry.reason, whole)


def _was_dead_throughout(action: Action, entry: AuditEntry, facts: DiagnosisFacts) -> bool:
    """Whether a change of dead jobs has left the id as it was."""
    return action.scope.kind == "dead" and facts.dead is not None and facts.dead.updated_at < entry.at


def _text(action: Action, entry: AuditEntry) -> str:
    values = {} if entry.shard is None else {SHARD.name: entry.shard}
    said = action.said(entry.queue, Target((), values), entry.jobs or 0)
    # The log has the filter, and not which jobs matched it within its limit.
    return f"{said}, perhaps not this one" if entry.filter else said


def _text_of_ids(action: Action, entry: AuditEntry) -> str:
    others = f" with {count_of(entry.id_count - 1, 'other id')}" if entry.id_count > 1 else ""
    return f"{action.done}{others}"
