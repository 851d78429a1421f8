"""What one dashboard is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from starlette.requests import Request

from celery_lowkiq.integration.operations.inspector import Console
from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.rules.errors import InvalidCall

from .access import Access
from .errors import NotFound
from .operations import Operations


@dataclass
class Site:
    """The app that it shows, and who may see it. ``load``: reads payloads that are not JSON, when it may."""

    app: Celery
    console: Console
    access: Access
    load: Callable[[bytes], Any] | None = None
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
            return self.console.queue(name)
        except InvalidCall as error:
            raise NotFound(str(error)) from error


def site_of(request: Request) -> Site:
    """The dashboard that was asked."""
    site: Site = request.app.state.site
    return site
