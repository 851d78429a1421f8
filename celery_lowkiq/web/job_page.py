"""The page of one id: its timeline, places, payloads and failed runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from celery_lowkiq.integration.actions import ACTIONS, SHARD, Action, Target, offered
from celery_lowkiq.integration.audit import AuditEntry
from celery_lowkiq.integration.json_records import mark_of
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.diagnosis import DiagnosisFacts, Entry, ShownChange, timeline
from celery_lowkiq.rules.text import count_of
from celery_lowkiq.rules.views import Try
from celery_lowkiq.web.auth import check_token
from celery_lowkiq.web.endpoints import Params, form_of
from celery_lowkiq.web.formatting import Texts, bytes_text
from celery_lowkiq.web.render import link_here, page
from celery_lowkiq.web.site import plain_queue_of, queue_of, site_of

# The timeline of one id, with the changes that the audit log has of it.

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
    """Return True if a change of dead jobs has left the id as it was."""
    return action.scope.kind == "dead" and facts.dead is not None and facts.dead.updated_at < entry.at


def _text(action: Action, entry: AuditEntry) -> str:
    values = {} if entry.shard is None else {SHARD.name: entry.shard}
    said = action.said(entry.queue, Target((), values), entry.jobs or 0)
    # The log has the filter, and not which jobs matched it within its limit.
    return f"{said}, perhaps not this one" if entry.filter else said


def _text_of_ids(action: Action, entry: AuditEntry) -> str:
    others = f" with {count_of(entry.id_count - 1, 'other id')}" if entry.id_count > 1 else ""
    return f"{action.done}{others}"


# The page of one id: its places, payloads, and failed runs. A form asks for payloads without masks.

#: Maximum number of payloads on the page; each is read whole, because its mark is a hash of it.
JOB = {"payload_limit": 100}


class Edited(NamedTuple):
    """A payload in the editor: its mark, and what a user wrote that was refused, with the error."""

    mark: str
    draft: str | None = None
    error: str = ""


def job(request: Request) -> Response:
    """One id, with masks."""
    return job_page(request, queue_of(request), Params.query(request).text("id"))


async def plain_job(request: Request) -> Response:
    """Form handler: one id with plain payloads, and the editor of one of them.

    A POST with the token of the session, because the audit log has it: another site can send none.
    """
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    return await run_in_threadpool(_plain_job, request, form)


def _plain_job(request: Request, form: Params) -> Response:
    job_id = form.text("id")
    queue = plain_queue_of(request, form.text("queue"), job_id)
    mark = form.text("edit", "")
    return job_page(request, queue, job_id, plain=True, edited=Edited(mark) if mark else None)


def job_page(
    request: Request,
    shown: OrderedQueue,
    job_id: str,
    *,
    plain: bool = False,
    edited: Edited | None = None,
) -> Response:
    """Render the page. ``plain``: the payloads of the queue have no masks."""
    places, why, tries = shown.job(job_id, **JOB), shown.why(job_id), shown.tries(job_id)
    changes = site_of(request).audit.read_if_there(SEARCHED)
    payloads = [
        payload
        for place in (places.waiting, places.processing, places.dead)
        if place
        for payload in place.payloads
    ]
    return page(
        request,
        "job.html",
        status=400 if edited and edited.error else 200,
        current=link_here("/job", queue=shown.name, id=job_id),
        queue=shown,
        job_id=job_id,
        places=places,
        why=why,
        tries=tries,
        moving=shown.migration_if_there() is not None,
        timeline=timeline_of(why.facts, tries, changes or ()),
        changes_unknown=changes is None,
        paused=why.facts.id_paused,
        held=why.facts.held_since,
        edited=edited,
        draft=edited.draft if edited else None,
        has_edited=edited is not None and edited.mark in map(mark_of, payloads),
        plain=plain and bool(site_of(request).redactor),
        masks=any(payload.masked and payload.masked.hides for payload in payloads),
        actions=ACTIONS,
        offered=offered,
        mark_of=mark_of,
        texts=Texts(),
        bytes_text=bytes_text,
    )
