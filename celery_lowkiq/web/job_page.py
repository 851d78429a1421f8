"""The page of one id: its places, payloads, and failed runs. A form asks for payloads without masks."""

from __future__ import annotations

from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from celery_lowkiq.integration.operations.actions import ACTIONS, offered
from celery_lowkiq.integration.operations.json_records import mark_of
from celery_lowkiq.integration.operations.queue import OrderedQueue

from .formatting import Texts, bytes_text
from .guard import check_token
from .job_timeline import SEARCHED, timeline_of
from .params import Params, form_of
from .render import link_here, page
from .site import plain_queue_of, queue_of, site_of

#: Maximum number of payloads on the page; each is read whole, since its mark is a hash of it.
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

    A POST with the token of the session, since the audit log has it: another site can send none.
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
