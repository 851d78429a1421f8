"""The state of one dashboard."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery import Celery
from starlette.requests import Request

from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.integration.operations.json_records import AS_JSON, Reading
from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.rules.errors import InvalidCall

from .access import Access
from .errors import NotFound
from .operations import Operations
from .params import Params


@dataclass
class Site:
    """A dashboard: its app, and its access rules. ``reading``: how the JSON API reads payloads."""

    app: Celery
    inspector: Inspector
    access: Access
    reading: Reading = AS_JSON
    operations: Operations = field(default_factory=Operations)

    @property
    def name(self) -> str:
        return str(self.app.main or "celery")

    @property
    def read_only(self) -> bool:
        return self.access.read_only

    def queue(self, name: str) -> OrderedQueue:
        """Return the queue with a name or an unambiguous last part of it. Raises NotFound."""
        try:
            return self.inspector.queue(name)
        except InvalidCall as error:
            raise NotFound(str(error)) from error


def site_of(request: Request) -> Site:
    """Return the dashboard of a request."""
    site: Site = request.app.state.site
    return site


def queue_of(request: Request) -> OrderedQueue:
    """Return the queue that a request names. Raises InvalidCall and NotFound."""
    return site_of(request).queue(Params.query(request).text("queue"))
