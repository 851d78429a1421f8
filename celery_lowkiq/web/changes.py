"""Everything that changes something, from a form or from the API."""

from __future__ import annotations

from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.rules.errors import InvalidCall

from .actions import Action, Target, action_of
from .audit import Change, audit
from .errors import NotFound
from .guard import USER, check_token
from .operations import Operation
from .params import MAX_IDS, Params, form_of
from .render import link, page
from .site import Site, site_of

#: For so many seconds an answer waits for the end of a change; a longer one is watched on its page.
PATIENCE = 0.7
MAX_BACK = 4000


def begin(request: Request, queue: OrderedQueue, action: Action, target: Target) -> Operation:
    """Start a change, with a line in the log. Raises InvalidCall, TooBusy and StoreError."""
    if len(target.ids) > MAX_IDS:
        raise InvalidCall(f"{len(target.ids)} ids: at most {MAX_IDS} at once are allowed")
    target = replace(target, ids=tuple(map(read_id, target.ids)))
    action.check(queue, target)
    change = Change(*_asker(request), action.name, queue.name, target.ids, target.shard)
    operation = Operation(change, action.label, action.total(queue, target), action.unit)
    operations = site_of(request).operations
    return operations.start(operation, lambda progress: action.run(queue, target, progress))


def call_off(request: Request, operation: Operation) -> None:
    """Cancel it, with a line in the log that names who did."""
    if operation.running:
        user, address = _asker(request)
        whose = f"of {operation.change.user!a} is to be cancelled"
        audit(replace(operation.change, user=user, address=address), whose)
    operation.cancel()


def _asker(request: Request) -> tuple[str, str]:
    return str(request.scope[USER]), request.client.host if request.client else "?"


async def change(request: Request) -> Response:
    """A form: asks first, if that is wise, and comes back to the page that it stood on."""
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    return await run_in_threadpool(_change, request, form)


def _change(request: Request, form: Params) -> Response:
    site = site_of(request)
    queue, action = site.queue(form.text("queue")), action_of(form.text("action"))
    target = _target(form)
    if action.on == "ids" and not target.ids:
        raise InvalidCall("no job was chosen: tick some, then say what to do with them")
    if action.dangerous and not form.flag("confirmed"):
        return _ask(request, form, queue, action, target)
    operation = begin(request, queue, action, target)
    if operation.wait(PATIENCE):
        return _back(request, form.text("back", "/"), operation)
    return RedirectResponse(link(request, "/operation", id=operation.id), 303)


def _target(form: Params) -> Target:
    shard = form.whole("shard", 0, 4095, 0) if form.text("shard", "") else None
    return Target(form.texts("id"), shard, form.text("mark", "") or None, form.text("value", "") or None)


def _ask(request: Request, form: Params, queue: OrderedQueue, action: Action, target: Target) -> Response:
    return page(
        request,
        "confirm.html",
        queue=queue,
        action=action,
        target=target,
        total=action.total(queue, target),
        back=_own_path(form.text("back", "/")),
    )


async def cancel(request: Request) -> Response:
    """A form that stops an operation after the step that runs."""
    form = await form_of(request)
    check_token(request, form.text("token", ""))
    operation = operation_of(site_of(request), form.text("id"))
    call_off(request, operation)
    await run_in_threadpool(operation.wait, PATIENCE)
    return RedirectResponse(link(request, "/operation", id=operation.id), 303)


def operation_of(site: Site, operation_id: str) -> Operation:
    """Raises NotFound."""
    operation = site.operations.get(operation_id)
    if operation is None:
        raise NotFound(
            f"operation {operation_id[:50]!r} is not known: it was begun long ago, or by another process"
        )
    return operation


def _back(request: Request, path: str, operation: Operation) -> Response:
    own = _own_path(path)
    separator = "&" if "?" in own else "?"
    return RedirectResponse(f"{link(request, '')}{own}{separator}did={operation.id}", 303)


def _own_path(path: str) -> str:
    """A path of the dashboard, or its first page: a form must not send people elsewhere."""
    strange = path.startswith("//") or "\\" in path or not path.isprintable() or len(path) > MAX_BACK
    return "/" if strange or not path.startswith("/") else path
