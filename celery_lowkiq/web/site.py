"""What one dashboard is made of."""

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
    """The app that it shows, and who may see it. ``reading``: how payloads are read for programs."""

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
        """The queue of that name, or whose name alone ends with it. Raises NotFound."""
        try:
            return self.inspector.queue(name)
        except InvalidCall as error:
            raise NotFound(str(error)) from error


def site_of(request: Request) -> Site:
    """The dashboard that was asked."""
    site: Site = request.app.state.site
    return site


def queue_of(request: Request) -> OrderedQueue:
    """The queue that the request names. Raises InvalidCall and NotFound."""
    return site_of(request).queue(Params.query(request).text("queue"))
