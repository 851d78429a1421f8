"""The dashboard: an ASGI application with pages and a JSON API over the ordered queues of an app."""

from __future__ import annotations

from celery_lowkiq.web.app import make_app
from celery_lowkiq.web.auth import User

__all__ = ["User", "make_app"]
