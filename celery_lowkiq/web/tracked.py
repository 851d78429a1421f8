"""Tracked groups of calls: how far each is and what became of its calls, as pages and JSON; cancelling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from celery_lowkiq.integration.trackers import TrackedCall, Tracker
from celery_lowkiq.rules.tracking import State, TrackerView
from celery_lowkiq.rules.views import Page

from . import show
from .audit import Change, audit
from .guard import USER, check_token
from .params import Params, form_of
from .render import link, page
from .site import site_of

#: States by their names, and "" for all of them.
STATES = ("", *(state.value for state in State))
DEFAULT_LIMIT, MAX_LIMIT = 50, 500
#: As much of a payload is shown, in characters.
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


def trackers_json(request: Request) -> Response:
    """The same for programs."""
    found = _groups(request)
    return _json(map(_group, found.items), found)


def tracker_json(request: Request) -> Response:
    """One group for programs."""
    return JSONResponse(_group(_asked(request)[0].view()))


def calls_json(request: Request) -> Response:
    """A page of its calls for programs."""
    found = _calls(request, *_asked(request))
    return _json(map(_call, found.items), found)


async def cancel(request: Request) -> Response:
    """A form: no more calls of a group begin."""
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    return await run_in_threadpool(_cancel, request, form.text("id"))


def _cancel(request: Request, tracker_id: str) -> Response:
    group = site_of(request).console.tracker(tracker_id)
    client = request.client.host if request.client else "?"
    change = Change(str(request.scope[USER]), client, "cancel", f"tracker {group.name}", (group.id,))
    audit(change, "begins")
    audit(change, "done", group.cancel())
    return RedirectResponse(link(request, "/tracker", id=group.id), 303)


def _groups(request: Request) -> Page[TrackerView]:
    params = Params.query(request)
    limit = params.whole("limit", 1, MAX_LIMIT, DEFAULT_LIMIT)
    return site_of(request).console.trackers(limit, params.cursor())


def _asked(request: Request) -> tuple[Tracker, str]:
    params = Params.query(request)
    group = site_of(request).console.tracker(params.text("id"))
    return group, params.choice("state", STATES, "")


def _calls(request: Request, group: Tracker, state: str) -> Page[TrackedCall]:
    params = Params.query(request)
    limit = params.whole("limit", 1, MAX_LIMIT, DEFAULT_LIMIT)
    return group.jobs(state or None, limit, params.cursor())


def _payload_text(call: TrackedCall) -> str:
    return show.bytes_text(call.payload)[:PEEK]


def _json(items: Iterable[dict[str, Any]], found: Page[Any]) -> Response:
    return JSONResponse({"items": list(items), "next": found.next})


def _group(view: TrackerView) -> dict[str, Any]:
    counts = view.counts
    shown = {state.value: getattr(counts, state.value) for state in State}
    return {**view._asdict(), "done": view.done, "counts": {**shown, "total": counts.total}}


def _call(call: TrackedCall) -> dict[str, Any]:
    return {
        "task_id": call.task_id,
        "queue": call.queue,
        "id": call.id,
        "payload": show.bytes_text(call.payload),
        "state": call.state.value,
        "updated_at": call.updated_at,
        "current": call.current,
        "total": call.total,
        "messages": [{"at": m.at, "state": m.state.value, "text": m.text} for m in call.messages],
    }


ROUTES = [
    Route("/trackers", trackers),
    Route("/tracker", tracker),
    Route("/tracker/cancel", cancel, methods=["POST"]),
    Route("/api/v1/trackers", trackers_json),
    Route("/api/v1/tracker", tracker_json),
    Route("/api/v1/tracker/calls", calls_json),
]
