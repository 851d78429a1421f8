"""The state of one dashboard."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery import Celery
from starlette.requests import Request

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.integration.calls import read_id
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.redaction import Redactor
from celery_lowkiq.web.auth import Access, address_of, user_of
from celery_lowkiq.web.endpoints import Params
from celery_lowkiq.web.errors import NotFound, Refused
from celery_lowkiq.web.operations import Operations


@dataclass
class Site:
    """A dashboard: its app, and its access rules."""

    app: Celery
    inspector: Inspector
    #: The same with payloads as they are.
    plain: Inspector
    access: Access
    operations: Operations = field(default_factory=Operations)

    @property
    def name(self) -> str:
        return str(self.app.main or "celery")

    @property
    def read_only(self) -> bool:
        return self.access.read_only

    @property
    def redactor(self) -> Redactor:
        return context_of(self.app).settings.redactor

    @property
    def audit(self) -> Audit:
        return Audit(self.app)

    def queue(self, name: str, plain: bool = False) -> OrderedQueue:
        """Return the queue with a name or an unambiguous last part of it. Raises NotFound.

        ``plain``: payloads have no masks.
        """
        try:
            return (self.plain if plain else self.inspector).queue(name)
        except InvalidCall as error:
            raise NotFound(str(error)) from error


def site_of(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def queue_of(request: Request) -> OrderedQueue:
    """Return the queue that a request names. Raises InvalidCall and NotFound."""
    site = site_of(request)
    queue = site.queue(Params.query(request).text("queue"))
    sees_plain = user_of(request.scope).may_see_plain
    return queue if sees_plain else queue.masked(marks=False)


def plain_queue_of(request: Request, name: str, job_id: str) -> OrderedQueue:
    """Return a queue whose payloads have no masks, to read one id, which is written to the audit log.

    Only for requests that no other site can send. Raises Refused.
    """
    site, user = site_of(request), user_of(request.scope)
    if not user.may_see_plain:
        raise Refused("you may not see payloads without masks")
    queue, ids = site.queue(name, plain=True), (read_id(job_id),)
    if site.redactor:
        site.audit.write(Change(user.name, address_of(request), "read_plain", queue.name, ids), "done")
    return queue
