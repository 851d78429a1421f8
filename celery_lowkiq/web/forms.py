"""Forms of pages: the changes that operators begin and cancel, which the JSON API shares."""

from __future__ import annotations

from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from celery_lowkiq.integration.actions import (
    LIMIT,
    MARK,
    RATE,
    RESHARD,
    VALUE,
    Action,
    Target,
    action_of,
    payload_change,
)
from celery_lowkiq.integration.audit import Change
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.integration.tracking import Tracker
from celery_lowkiq.rules.errors import InvalidCall, PayloadError
from celery_lowkiq.web.auth import address_of, check_token, user_of
from celery_lowkiq.web.endpoints import Params, form_of
from celery_lowkiq.web.errors import NotFound, Refused
from celery_lowkiq.web.job_page import Edited, job_page
from celery_lowkiq.web.operations import Operation
from celery_lowkiq.web.render import link, page
from celery_lowkiq.web.site import Site, plain_queue_of, site_of

#: Seconds that a response waits for the end of a change; a longer change is shown on its own page.
PATIENCE = 0.7
MAX_BACK = 4000


def begin(
    request: Request, queue: OrderedQueue, action: Action, target: Target, reason: str = ""
) -> Operation:
    """Start a change, and log it with the reason that the user gave.

    Raises TooBusy, StoreError, InvalidCall for a reason that is too long, and Refused for an edit of a user
    who may not see the payload.
    """
    if VALUE in action.parameters and not user_of(request.scope).may_see_plain:
        raise Refused("to edit a payload, you need the right to see it without masks")
    site = site_of(request)
    what = payload_change(queue, action, target) if MARK in action.takes else ""
    change = Change.of(*asker(request), action, queue.name, target, reason.strip(), what)
    operation = Operation(change, action, target, action.total(queue, target), site.audit)
    return site.operations.start(operation, lambda progress: action.run(queue, target, progress))


def call_off(request: Request, operation: Operation) -> None:
    """Cancel a change, and log the user who cancels it."""
    if operation.running:
        user, address = asker(request)
        whose = f"of {operation.change.user!a} is to be cancelled"
        site_of(request).audit.write(replace(operation.change, user=user, address=address), whose)
    operation.cancel()


def asker(request: Request) -> tuple[str, str]:
    """Return the user of a request, and the address."""
    return user_of(request.scope).name, address_of(request)


async def change(request: Request) -> Response:
    """Form handler: asks before an action that is dangerous, or on all jobs, and returns to the page with the
    form, also with the error of an invalid one.
    """
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    try:
        return await run_in_threadpool(_change, request, form)
    except InvalidCall as error:
        if not (back := form.text("back", "")):
            raise
        return _back(request, back, "refused", site_of(request).operations.refuse(str(error)))


def _change(request: Request, form: Params) -> Response:
    queue, action = site_of(request).queue(form.text("queue")), action_of(form.text("action"))
    if VALUE in action.parameters:
        return _edit(request, queue, action, form)
    target = _target(form, action)
    if action.scope.ids and not target.ids:
        raise InvalidCall("no job is selected. Select some jobs, then press a button")
    if action.optional:
        target = action.target(queue, target.ids, target.values)
    missing = [one for one in action.parameters if one.name not in target.values]
    if missing or (action.asks and not form.flag("confirmed")):
        return page(
            request,
            "confirm.html",
            queue=queue,
            action=action,
            target=target,
            missing=missing,
            bounds=[one for one in (LIMIT, RATE) if one in action.optional and one.name not in target.values],
            given={
                one.name: one.write(target.values[one.name])
                for one in action.takes
                if one.name in target.values
            },
            plan=action.plan(queue, target) if action.plan and not missing else "",
            question=action.question(queue.name, target, action.total(queue, target)),
            back=_own_path(form.text("back", "/")),
        )
    checked = action.target(queue, target.ids, target.values)
    operation = begin(request, queue, action, checked, form.text("reason", ""))
    if operation.wait(PATIENCE):
        return _back(request, form.text("back", "/"), "did", operation.id)
    if action.scope is RESHARD:
        return RedirectResponse(link(request, "/queue", queue=queue.name), 303)
    return RedirectResponse(link(request, "/operation", id=operation.id), 303)


def _edit(request: Request, queue: OrderedQueue, action: Action, form: Params) -> Response:
    """Replace a payload. A refused one stays in the editor, with the error."""
    try:
        given = _target(form, action)
        operation = begin(
            request, queue, action, action.target(queue, given.ids, given.values), form.text("reason", "")
        )
        if operation.wait(PATIENCE) and not operation.error:
            return _back(request, form.text("back", "/"), "did", operation.id)
        error = operation.error
    except (InvalidCall, PayloadError) as refused:
        error = str(refused)
    if not error:
        return RedirectResponse(link(request, "/operation", id=operation.id), 303)
    job_id = form.text("id")
    edited = Edited(form.text(MARK.name), form.text(VALUE.name, ""), error)
    return job_page(request, plain_queue_of(request, queue.name, job_id), job_id, plain=True, edited=edited)


def _target(form: Params, action: Action) -> Target:
    """The target that a form names. An optional field without text is not given."""
    given = {one: form.texts(one.name) for one in action.takes}
    values = {
        one.name: one.read(texts[0])
        for one, texts in given.items()
        if texts and (texts[0].strip() or one not in action.optional)
    }
    return Target(form.texts("id"), values)


async def cancel(request: Request) -> Response:
    """Form handler: stops an operation after the step that runs."""
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    operation = operation_of(site_of(request), form.text("id"))
    call_off(request, operation)
    await run_in_threadpool(operation.wait, PATIENCE)
    return RedirectResponse(link(request, "/operation", id=operation.id), 303)


async def cancel_tracker(request: Request) -> Response:
    """Form handler: cancels the waiting calls of a tracker."""
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    tracker = await run_in_threadpool(cancel_calls, request, form.text("id"))
    return RedirectResponse(link(request, "/tracker", id=tracker.id), 303)


def cancel_calls(request: Request, tracker_id: str) -> Tracker:
    """Cancel the waiting calls of a tracker, and log the user who does. Raises UnknownTracker."""
    site = site_of(request)
    tracker = site.inspector.tracker(tracker_id)
    change = Change(*asker(request), "cancel", f"tracker {tracker.name}", (tracker.id,))
    site.audit.around(change, tracker.cancel)
    return tracker


def operation_of(site: Site, operation_id: str) -> Operation:
    """Return the operation with an id. Raises NotFound."""
    operation = site.operations.get(operation_id)
    if operation is None:
        raise NotFound(
            f"operation {operation_id[:50]!r} is unknown: it is too old, or another process started it"
        )
    return operation


def _back(request: Request, path: str, name: str, value: str) -> Response:
    """Lead to the page with the form, which shows the operation ``did`` or the error ``refused``."""
    own = _own_path(path)
    separator = "&" if "?" in own else "?"
    return RedirectResponse(f"{link(request, '')}{own}{separator}{name}={value}", 303)


def _own_path(path: str) -> str:
    """The path, or ``/`` for a path outside of the dashboard: a form must not redirect elsewhere."""
    strange = path.startswith("//") or "\\" in path or not path.isprintable() or len(path) > MAX_BACK
    return "/" if strange or not path.startswith("/") else path
