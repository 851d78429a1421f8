"""The JSON API."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from celery_lowkiq.rules.models import Stats

from .site import site_of


def stats(request: Request) -> Response:
    """Figures in Lowkiq's form."""
    found = site_of(request).console.overview()
    by_worker = {name: _lowkiqs(of_queue) for name, of_queue in found.by_queue.items()}
    return JSONResponse({"total": _lowkiqs(found.total), "by_worker": by_worker})


def _lowkiqs(found: Stats) -> dict[str, Any]:
    return {"length": found.length, "morgue_length": found.morgue_length, "lag": found.lag}


def healthz(_: Request) -> Response:
    """The process answers."""
    return JSONResponse({"status": "ok"})


def readyz(request: Request) -> Response:
    """Redis answers, too."""
    site_of(request).console.server()
    return JSONResponse({"status": "ok"})
