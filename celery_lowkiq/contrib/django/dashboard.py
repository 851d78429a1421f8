"""The dashboard below a URL of a Django project."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any

from asgiref.sync import sync_to_async
from celery import Celery
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseForbidden,
    JsonResponse,
)
from django.shortcuts import resolve_url
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.urls import NoReverseMatch, Resolver404, re_path, resolve, reverse
from django.utils.html import format_html
from django.views.decorators.csrf import csrf_exempt
from starlette.types import ASGIApp, Message, Scope

from celery_lowkiq.contrib.django.celery_app import celery_app
from celery_lowkiq.integration.settings import Role
from celery_lowkiq.web import User, make_app
from celery_lowkiq.web.auth import OPERATOR, PUBLIC, VIEWER
from celery_lowkiq.web.endpoints import MAX_BODY

# Rights of a Django user on the dashboard.


def role_of(user: Any) -> Role | None:
    """Return the role that the permissions of a user give; None: the user may not see the dashboard.

    Superusers have all permissions; inactive and anonymous users have none.
    """
    if user.has_perm("lowkiq.change_dashboard"):
        return OPERATOR
    return VIEWER if user.has_perm("lowkiq.view_dashboard") else None


# The dashboard as a view of Django, under WSGI and ASGI.
#
# Django's own middleware finds the user: the session engine, its auth hash, database connections and logins
# by other means are the project's.

#: Where ``scope`` has Django's user.
USER = "lowkiq.django_user"
#: Namespace of the dashboard's URLs.
NAMESPACE = "lowkiq"
NEEDS = "the dashboard needs django.contrib.auth's AuthenticationMiddleware in MIDDLEWARE"
PERMISSION = (
    "the permission lowkiq.view_dashboard is missing. A superuser gives it in the admin, to the user or to a "
    "group of the user"
)
FORBIDDEN = "<!doctype html><html lang=en><title>403 Forbidden</title><h1>403 Forbidden</h1><p>{}.</p></html>"

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]


def dashboard_urls(
    app: Celery | None = None, *, role: Callable[[Any], Role | None] = role_of
) -> tuple[list[Any], str, str]:
    """Return the URLs of the dashboard of an app, by default of the current one.

    Use them as ``path("queues/", dashboard_urls())``. ``role`` returns what a user may do.
    """
    return [re_path(r"^(?P<path>.*)$", _view(app, role), name="dashboard")], NAMESPACE, NAMESPACE


def _view(app: Celery | None, role: Callable[[Any], Role | None]) -> View:
    @cache
    def made(origins: tuple[str, ...]) -> ASGIApp:
        return make_app(app or celery_app(), auth=lambda request: request.scope[USER], origins=origins)

    def asker(request: HttpRequest) -> tuple[str, Role | None]:
        user = getattr(request, "user", None)
        if user is None:
            raise ImproperlyConfigured(NEEDS)
        return user.get_username(), role(user)

    # Forms have a token of the dashboard's own, and the origin of each change is checked.
    @csrf_exempt
    async def view(request: HttpRequest, path: str = "") -> HttpResponse:
        # In the thread whose database connections Django closes at the end of the request.
        is_public = f"/{path}" in PUBLIC
        name, may = ("", VIEWER) if is_public else await sync_to_async(asker)(request)
        if may is None:
            return _refuse(request, name, path)
        asgi = made(tuple(settings.CSRF_TRUSTED_ORIGINS))
        return await _answer(asgi, _scope(request, path, User(name, may)), request)

    return view


def dashboard_url() -> str | None:
    """Return the path of the dashboard; None where the URLconf does not include it."""
    try:
        return reverse(f"{NAMESPACE}:dashboard", kwargs={"path": ""})
    except NoReverseMatch:
        return None


def _refuse(request: HttpRequest, name: str, path: str) -> HttpResponse:
    """Lead to the login, or say why not. Raises PermissionDenied where the project has a page for it."""
    if name:
        return _forbid(f"{name} may not see the dashboard of ordered queues: {PERMISSION}", path)
    if path.startswith("api/") or request.method not in ("GET", "HEAD"):
        return JsonResponse({"error": "you are not logged in"}, status=403)
    return redirect_to_login(request.get_full_path(), login_url())


def _forbid(reason: str, path: str) -> HttpResponse:
    if path.startswith("api/"):
        return JsonResponse({"error": reason}, status=403)
    try:
        get_template("403.html")
    except TemplateDoesNotExist:
        # Django's own page would say no more than "403 Forbidden".
        return HttpResponseForbidden(format_html(FORBIDDEN, reason))
    raise PermissionDenied(reason)


def login_url() -> str:
    """Return LOGIN_URL; in a project that has neither set it nor a page there, the admin's login."""
    url = str(resolve_url(settings.LOGIN_URL))
    if settings.is_overridden("LOGIN_URL"):
        return url
    try:
        resolve(url)
    except Resolver404:
        try:
            return str(reverse("admin:login"))
        except NoReverseMatch:
            return url
    return url


def _scope(request: HttpRequest, path: str, user: User) -> Scope:
    """The request as ASGI describes it, with what Django's settings say of proxies."""
    headers = {**request.headers, "Host": request.get_host()}
    address = request.META.get("REMOTE_ADDR")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": request.path[: len(request.path) - len(path)].rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [(key.lower().encode(), value.encode("latin-1")) for key, value in headers.items()],
        "client": (address, 0) if address else None,
        "server": None,
        USER: user,
    }


async def _answer(app: ASGIApp, scope: Scope, request: HttpRequest) -> HttpResponse:
    # Not request.body, which Django bounds for its own forms.
    bodies = [request.read(MAX_BODY + 1)]
    sent: list[Message] = []

    async def receive() -> Message:
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *parts = sent
    response = HttpResponse(b"".join(part.get("body", b"") for part in parts), status=start["status"])
    del response["Content-Type"]
    for key, value in start["headers"]:
        if key == b"set-cookie":
            response.cookies.load(value.decode("latin-1"))
        else:
            response[key.decode("latin-1")] = value.decode("latin-1")
    return response
