"""The tab in Flower."""

from __future__ import annotations

import os
import re
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from celery import Celery
from flower import urls
from flower.utils import strtobool
from tornado.ioloop import IOLoop
from tornado.template import Loader, Template
from tornado.web import HTTPError, RequestHandler, authenticated, url

from celery_lowkiq.integration.actions import ACTIONS, MIGRATION, Action, Target
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import ShownDeadJob, encode
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.basics import flower_logger as logger
from celery_lowkiq.rules.errors import InvalidCall, LowkiqError
from celery_lowkiq.rules.text import (
    TERMS,
    duration,
    escaped,
    lacking,
    last_error_line,
    number,
    shortened,
    time_element,
)

# The pages of the tab and their actions, behind Flower's own authentication.

if TYPE_CHECKING:
    # Flower has no types.
    class BaseHandler(RequestHandler):
        capp: Celery

    BaseApiHandler = BaseHandler
else:
    from flower.api import BaseApiHandler
    from flower.views import BaseHandler

T = TypeVar("T")

#: Dead jobs on a page, and characters of a text.
PAGE = 100
LONGEST = 300
#: The actions of the tab: those that need no question before and no page of their own.
OFFERED = {
    name: one for name, one in ACTIONS.items() if not (one.dangerous or one.takes or one.scope is MIGRATION)
}
#: Functions that templates call.
TEXT: dict[str, Callable[..., str]] = {
    "span": duration,
    "number": number,
    "meaning": lambda word: TERMS[word].replace("`", ""),
    "text": lambda value: shortened(escaped(str(value)), LONGEST),
    "error_line": last_error_line,
}


class OrderedPage(BaseHandler):
    """All queues."""

    @authenticated
    async def get(self) -> None:
        """Counts of each."""
        found = await _answer(Inspector(self.capp).overview)
        self.render("ordered.html", overview=found, **TEXT)


class OrderedQueuePage(BaseHandler):
    """One queue and its morgue."""

    @authenticated
    async def get(self) -> None:
        """The counts, and a page of dead jobs, those that died last first."""
        name, after = self.get_query_argument("queue"), self.get_query_argument("after", None)
        found = await _answer(lambda: _queue(Inspector(self.capp, masked=True), name, after))
        said = done(found["queue"], self.get_query_argument("did", ""), self.get_query_argument("count", ""))
        unfit = "pause" if found["paused"].queue else "resume"
        buttons = [one for one in OFFERED.values() if not one.scope.ids and one.name != unfit]
        rows = {"said": said, "may_act": _may_act(self), "buttons": buttons, "requeue": OFFERED["requeue"]}
        now = time.time()
        rows["when"] = lambda at: time_element(at, now)
        self.render("ordered_queue.html", **rows, **found, **TEXT)


class OrderedAction(BaseApiHandler):
    """An action from a form. As each change in Flower, it needs authentication, or Flower's setting that
    allows changes without.
    """

    @authenticated
    async def post(self) -> None:
        """Do it, and go back to the queue's page."""
        # Flower asks for the token only where it keeps a session.
        RequestHandler.check_xsrf_cookie(self)
        name, did = self.get_body_argument("queue"), self.get_body_argument("action")
        ids = self.get_body_arguments("id", strip=False)
        action = OFFERED.get(did)
        if action is None:
            raise HTTPError(400, f"action={did[:100]!r} is invalid: expected one of {', '.join(OFFERED)}")
        change = Change(_user(self), f"{self.request.remote_ip} by Flower", did, name, tuple(ids))
        count = await _answer(lambda: _run(self.capp, change, action))
        self.redirect(
            f"{self.reverse_url('ordered-queue')}?{urlencode({'queue': name, 'did': did, 'count': count})}"
        )


class OrderedApi(BaseApiHandler):
    """``GET /api/ordered``: counts of all queues as JSON."""

    @authenticated
    async def get(self) -> None:
        """The same record as of the dashboard's API."""
        found = await _answer(Inspector(self.capp).overview_json)
        self.set_header("Content-Type", "application/json")
        self.write(encode(found))


def done(queue: str, name: str, count: str) -> str:
    """Message of a page after an action; empty for texts that no action has written."""
    action = OFFERED.get(name)
    known = action and count.isdecimal() and len(count) < 16
    said = action.said(queue, Target(), int(count)) if action and known else ""
    return said[:1].upper() + said[1:]


def _run(app: Celery, change: Change, action: Action) -> int:
    queue = Inspector(app).queue(change.queue)
    target = action.target(queue, change.ids, {})
    return Audit(app).around(replace(change, queue=queue.name), lambda: action.run(queue, target, None))


async def _answer(ask: Callable[[], T]) -> T:
    """The answer of a question to Redis, which Flower's loop does not wait for."""
    try:
        return await IOLoop.current().run_in_executor(None, ask)
    except InvalidCall as error:
        raise HTTPError(404, str(error)) from error
    except LowkiqError as error:
        raise HTTPError(503, str(error)) from error


def _queue(inspector: Inspector, name: str, after: str | None) -> dict[str, Any]:
    queue: OrderedQueue = inspector.queue(name)
    page = queue.morgue("updated_at", reverse=True, limit=PAGE, payload_limit=3, after=after)
    return {
        "queue": queue.name,
        "stats": queue.stats(),
        "paused": queue.paused(),
        "dead": page.items,
        "notes": lacking(page.unreachable),
        "next": page.next,
        "payloads": _payloads,
    }


def _payloads(job: ShownDeadJob) -> str:
    shown = ", ".join(repr(payload.value) for payload in job.payloads)
    return f"{job.payload_count}: {shown}"


def _user(handler: Any) -> str:
    """Return the name of the user: Flower has it with OAuth, a header with basic authentication."""
    if isinstance(handler.current_user, str):
        return str(handler.current_user)
    if not handler.application.options.basic_auth:
        return "unknown"
    credentials = b64decode(handler.request.headers["Authorization"].split()[1]).decode()
    return credentials.partition(":")[0]


def _may_act(handler: Any) -> bool:
    options = handler.application.options
    return bool(options.basic_auth or options.auth) or bool(
        strtobool(os.environ.get("FLOWER_UNAUTHENTICATED_API") or "false")
    )


# Puts the tab into Flower, which has no way of its own for that: its lists are changed before it is made.

PAGES = ("ordered.html", "ordered_queue.html")
BAR = "navbar.html"
#: The entry of the last tab in Flower's bar: ours is made like it, in every version's own style.
LAST_TAB = re.compile(r"<li\b(?:(?!</li>).)*reverse_url\('broker'\)(?:(?!</li>).)*</li>", re.DOTALL)

HANDLERS = [
    url(r"/ordered", OrderedPage, name="ordered"),
    url(r"/ordered/queue", OrderedQueuePage, name="ordered-queue"),
    url(r"/ordered/action", OrderedAction, name="ordered-action"),
    url(r"/api/ordered", OrderedApi),
]


def install() -> None:
    """Add the tab to a Flower that is made in this process later. Doing so twice changes nothing."""
    if HANDLERS[0] not in urls.handlers:
        # The last one answers whatever no other does.
        urls.handlers[-1:-1] = HANDLERS
        urls.settings["template_loader"] = TabLoader(urls.settings["template_path"])


class TabLoader(Loader):
    """Flower's templates, ours among them, and the tab in its bar."""

    def _create_template(self, name: str) -> Template:
        if name in PAGES:
            text = resources.files(__package__).joinpath("templates").joinpath(name).read_text("utf-8")
            return Template(text, name=name, loader=self)
        if name != BAR:
            return super()._create_template(name)
        bar = Path(self.root, name).read_text("utf-8")
        return Template(with_tab(bar), name=name, loader=self)


def with_tab(bar: str) -> str:
    """Flower's bar with our tab behind its last one."""
    last = LAST_TAB.search(bar)
    if last is None:
        logger.warning(
            "this Flower has another bar: the page of ordered queues is at /ordered, without a tab"
        )
        return bar
    ours = last[0].replace("'broker'", "'ordered'").replace("Broker", "Ordered queues")
    return f"{bar[: last.end()]}\n{ours}{bar[last.end() :]}"
