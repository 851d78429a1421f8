"""Tracked groups of calls: pages and endpoints that show and cancel them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from celery_lowkiq.integration.app.codec import MARK
from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.operations.audit import Change
from celery_lowkiq.integration.operations.masked import PayloadMask
from celery_lowkiq.integration.operations.shown_jobs import NOT_DECODED
from celery_lowkiq.integration.tracking.tracker import Tracker
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.tracking import State, TrackedCall, TrackerView
from celery_lowkiq.rules.views import Page

from .changes import asker
from .endpoints import AFTER, DEFAULT_LIMIT, LIMIT, MAX_LIMIT, Endpoint, Query
from .formatting import bytes_text
from .guard import check_token
from .params import Params, form_of
from .render import link, page
from .site import Site, site_of

#: States by their names; "" for all of them.
STATES = ("", *(state.value for state in State))
#: Maximum length of a shown payload, in characters.
PEEK = 160


def trackers(request: Request) -> Response:
    """All groups, the latest first."""
    return page(request, "trackers.html", found=_groups(request))


def tracker(request: Request) -> Response:
    """One group, and a listing of its calls."""
    group, state = _asked(request)
    return page(
        request,
        "tracker.html",
        view=group.view(),
        state=state,
        states=STATES,
        found=_calls(request, group, state),
        after=Params.query(request).cursor(),
        payload_text=_payload_text,
    )


async def cancel(request: Request) -> Response:
    """Form handler: cancels the waiting calls of a group."""
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    return await run_in_threadpool(_cancel, request, form.text("id"))


def _cancel(request: Request, tracker_id: str) -> Response:
    group = site_of(request).inspector.tracker(tracker_id)
    _cancelled(request, group)
    return RedirectResponse(link(request, "/tracker", id=group.id), 303)


def _cancelled(request: Request, group: Tracker) -> int:
    change = Change(*asker(request), "cancel", f"tracker {group.name}", (group.id,))
    return site_of(request).audit.around(change, group.cancel)


# -- for programs


def api_trackers(request: Request) -> Page[TrackerView]:
    """Tracked groups of calls, the latest first."""
    return _groups(request)


def api_tracker(request: Request) -> TrackerView:
    """One group and its counts."""
    return _named(request).view()


def api_calls(request: Request) -> Page[TrackedCall]:
    """A page of a group's calls, in the order in which they came."""
    return _calls(request, _named(request), Params.query(request).choice("state", STATES, ""))


def api_cancel(request: Request) -> TrackerView:
    """End the waiting calls of a group as failed; running ones go on."""
    group = _named(request)
    _cancelled(request, group)
    return group.view()


def _named(request: Request) -> Tracker:
    return site_of(request).inspector.tracker(request.path_params["id"])


def _groups(request: Request) -> Page[TrackerView]:
    params = Params.query(request)
    limit = params.whole("limit", 1, MAX_LIMIT, DEFAULT_LIMIT)
    return site_of(request).inspector.trackers(limit, params.cursor())


def _asked(request: Request) -> tuple[Tracker, str]:
    params = Params.query(request)
    group = site_of(request).inspector.tracker(params.text("id"))
    return group, params.choice("state", STATES, "")


def _calls(request: Request, group: Tracker, state: str) -> Page[TrackedCall]:
    params = Params.query(request)
    limit = params.whole("limit", 1, MAX_LIMIT, DEFAULT_LIMIT)
    tasks, site = site_of(request).inspector.tasks(), site_of(request)

    def masked(call: TrackedCall) -> TrackedCall:
        form = tasks[call.queue].call_form if call.queue in tasks else None
        stored = PayloadMask(site.redactor, form).stored(call.payload, _decoded(site, call))
        return replace(call, payload=stored)

    return group.jobs(state or None, limit, params.cursor()).map(masked)


def _decoded(site: Site, call: TrackedCall) -> Any:
    """The payload of a call if it is not JSON, and the dashboard may decode it."""
    context = context_of(site.app)
    if context.settings.web_unpickle and call.payload.startswith(MARK):
        with suppress(UndecodablePayload):
            return context.gate(call.queue).load_unsigned(call.payload)
    return NOT_DECODED


def _payload_text(call: TrackedCall) -> str:
    return bytes_text(call.payload)[:PEEK]


ROUTES = (
    Route("/trackers", trackers),
    Route("/tracker", tracker),
    Route("/tracker/cancel", cancel, methods=["POST"]),
)
PAGE = (LIMIT, AFTER)
ENDPOINTS = (
    Endpoint("GET", "/trackers", api_trackers, Page[TrackerView], PAGE),
    Endpoint("GET", "/trackers/{id}", api_tracker, TrackerView),
    Endpoint("DELETE", "/trackers/{id}", api_cancel, TrackerView),
    Endpoint(
        "GET",
        "/trackers/{id}/calls",
        api_calls,
        Page[TrackedCall],
        (Query("state", {"enum": list(STATES)}), *PAGE),
    ),
)
