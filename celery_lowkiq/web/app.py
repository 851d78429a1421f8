"""The Starlette application of the dashboard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.settings import SETTINGS, Network, Settings
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.web import api, forms, job_page, pages
from celery_lowkiq.web.api import description
from celery_lowkiq.web.auth import Access, FindUser, Guard, Proxies, Roles, header, path_of, read_basic
from celery_lowkiq.web.endpoints import BASE, Endpoint, ErrorJson, json_response
from celery_lowkiq.web.errors import status_of
from celery_lowkiq.web.render import link, page
from celery_lowkiq.web.site import Site

AUTH_VARIABLE = "LOWKIQ_WEB_AUTH"
STATIC = Path(__file__).parent / "static"
#: Seconds.
YEAR = 365 * 86400


class Files(StaticFiles):
    """Static files. Browsers cache the URLs with a version, and revalidate the others."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        versioned = "v" in Request(scope).query_params
        response.headers["Cache-Control"] = f"private, max-age={YEAR}, immutable" if versioned else "no-cache"
        return response


def make_app(
    celery_app: Celery,
    *,
    auth: str | FindUser | None = None,
    roles: Roles | None = None,
    user_header: str | None = None,
    trusted_proxies: Sequence[str] | None = None,
    read_only: bool | None = None,
    origins: Sequence[str] = (),
) -> Starlette:
    """Return the dashboard of an app, to be served or mounted under any prefix.

    ``auth``: ``"user:password"``, one in a line; or a function that returns the name or the :class:`User` of
    a request (None refuses it). ``user_header``: the header in which a reverse proxy names the user, which is
    one of ``trusted_proxies`` or knows ``lowkiq_web_proxy_secret``. Without both, the settings
    ``lowkiq_web_auth`` and ``lowkiq_web_user_header`` or the environment variable ``LOWKIQ_WEB_AUTH`` apply;
    without these, the dashboard answers requests from this machine only.

    ``roles``: ``{"anna": "operator", "*": "viewer"}``, or a function that returns the role of a name (None
    refuses the user); default: ``lowkiq_web_roles``. ``read_only``: refuse all changes. ``origins``: further
    origins from which changes are accepted (``https://ops.example.com``).

    Raises ConfigurationError.
    """
    settings = context_of(celery_app).settings
    if auth is None and user_header is None:
        user_header = settings.web_user_header
        logins = "\n".join(settings.web_auth) or os.environ.get(AUTH_VARIABLE)
        auth = None if user_header else logins
    proxies = Proxies(_networks(trusted_proxies, settings), settings.web_proxy_secret)
    access = Access(
        **({"find_user": _find_user(auth, user_header, proxies)} if auth or user_header else {}),
        read_only=settings.web_read_only if read_only is None else read_only,
        origins=tuple(origins),
        roles=settings.web_roles if roles is None else roles,
        proxies=proxies,
    )
    app = Starlette(
        routes=_routes(),
        middleware=[Middleware(Guard, access=access, answer=_failed)],
        exception_handlers={LowkiqError: _failed, HTTPException: _failed},
    )
    masked = Inspector(celery_app, raw=True, masked=True)
    app.state.site = Site(celery_app, masked, Inspector(celery_app, raw=True), access)
    return app


def _networks(given: Sequence[str] | None, settings: Settings) -> tuple[Network, ...]:
    if given is None:
        return settings.web_trusted_proxies
    return SETTINGS["web_trusted_proxies"].valid.check("trusted_proxies", list(given))  # type: ignore[no-any-return]


def _find_user(auth: str | FindUser | None, user_header: str | None, proxies: Proxies) -> FindUser:
    if user_header:
        return header(user_header, proxies)
    assert auth is not None
    return read_basic(auth) if isinstance(auth, str) else auth


def _routes() -> list[Route | Mount]:
    return [
        Route("/", pages.overview),
        Route("/queue", pages.queue),
        Route("/search", pages.search),
        Route("/job", job_page.job),
        Route("/job", job_page.plain_job, methods=["POST"]),
        Route("/failures", pages.failures),
        Route("/nodes", pages.nodes),
        Route("/doctor", pages.doctor),
        Route("/audit", pages.audit),
        Route("/operations", pages.operations),
        Route("/operation", pages.operation),
        Route("/trackers", pages.trackers),
        Route("/tracker", pages.tracker),
        Route("/tracker/cancel", forms.cancel_tracker, methods=["POST"]),
        Route("/change", forms.change, methods=["POST"]),
        Route("/cancel", forms.cancel, methods=["POST"]),
        *(endpoint.route for endpoint in ENDPOINTS),
        Route("/healthz", api.healthz),
        Route("/readyz", api.readyz),
        Mount("/static", Files(directory=STATIC)),
    ]


def openapi(request: Request) -> dict[str, Any]:
    """The OpenAPI description of this API."""
    return description(link(request, BASE), ENDPOINTS)


#: The whole JSON API.
ENDPOINTS: tuple[Endpoint, ...] = (
    *api.ENDPOINTS,
    Endpoint("GET", "/openapi.json", openapi, dict[str, Any]),
)


def _failed(request: Request, error: Exception) -> Response:
    """Return the error as a page, or as JSON."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if isinstance(error, LowkiqError):
        status = status_of(error)
    text = str(error.detail if isinstance(error, HTTPException) else error)
    path = path_of(request.scope)
    if path.startswith("/api/") or path in ("/healthz", "/readyz"):
        response = json_response(ErrorJson(text), status)
    else:
        response = page(
            request,
            "error.html",
            status=status,
            code=status,
            text=text,
            retries=request.method == "GET",
        )
    if status == 405:
        response.headers["Allow"] = ", ".join(_allowed(request))
    return response


def _allowed(request: Request) -> list[str]:
    """Return the methods of all routes with the path; Starlette knows only those of the first."""
    routes = [route for route in _routes() if isinstance(route, Route)]
    found = [route.methods or set() for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted(set[str]().union(*found) or {"GET", "HEAD"})
