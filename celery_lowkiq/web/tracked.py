"""Tracked groups of calls: how far each is and what became of its calls, as pages and JSON; cancelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from celery_lowkiq.integration.tracking.tracker import TrackedCall, Tracker
from celery_lowkiq.rules.tracking import State, TrackerView
from celery_lowkiq.rules.views import Page

from . import show
from .api import Json
from .audit import Change, audit
from .guard import USER, check_token
from .params import Params, form_of
from .render import link, page
from .site import site_of

#: States by their names; "" for all of them.
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


async def cancel(request: Request) -> Response:
    """A form: no more calls of a group begin."""
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    return await run_in_threadpool(_cancel, request, form.text("id"))


def _cancel(request: Request, tracker_id: str) -> Response:
    group = site_of(request).console.tracker(tracker_id)
    _cancelled(request, group)
    return RedirectResponse(link(request, "/tracker", id=group.id), 303)


def _cancelled(request: Request, group: Tracker) -> int:
    client = request.client.host if request.client else "?"
    change = Change(str(request.scope[USER]), client, "cancel", f"tracker {group.name}", (group.id,))
    audit(change, "begins")
    count = group.cancel()
    audit(change, "done", count)
    return count


# -- for programs


def api_trackers(request: Request) -> Response:
    """All groups, the latest first."""
    return _json(_group, _groups(request))


def api_tracker(request: Request) -> Response:
    """One group."""
    return Json(_group(_named(request).view()))


def api_calls(request: Request) -> Response:
    """A page of its calls."""
    state = Params.query(request).choice("state", STATES, "")
    return _json(_call, _calls(request, _named(request), state))


def api_cancel(request: Request) -> Response:
    """No more calls of it begin."""
    group = _named(request)
    _cancelled(request, group)
    return Json(_group(group.view()))


def _named(request: Request) -> Tracker:
    return site_of(request).console.tracker(request.path_params["id"])


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


def _json(shown: Callable[[Any], dict[str, Any]], found: Page[Any]) -> Response:
    return Json({"items": [shown(item) for item in found.items], "next": found.next})


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


ROUTES = (
    Route("/trackers", trackers),
    Route("/tracker", tracker),
    Route("/tracker/cancel", cancel, methods=["POST"]),
)
#: Under ``/api/v1``.
API_ROUTES = (
    ("GET", "/trackers", api_trackers),
    ("GET", "/trackers/{id}", api_tracker),
    ("DELETE", "/trackers/{id}", api_cancel),
    ("GET", "/trackers/{id}/calls", api_calls),
)
