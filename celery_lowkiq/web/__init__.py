"""The dashboard: an ASGI application with pages and a JSON API over the ordered queues of an app."""

from __future__ import annotations

from .access import User
from .app import make_app

__all__ = ["User", "make_app"]
