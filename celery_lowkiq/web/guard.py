"""Middleware before every page: authentication, origin and token checks, and security headers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_lowkiq.rules.loggers import audit_logger as logger

from .access import NOBODY, Access, TooManyTries, Unauthorized, User
from .errors import Refused
from .proxies import address_of

COOKIE = "lowkiq_token"
USER = "lowkiq.user"
TOKEN = "lowkiq.token"  # noqa: S105 a name, no secret
#: Paths of health probes, which have no password.
PUBLIC = ("/healthz", "/readyz")
READS = ("GET", "HEAD", "OPTIONS")
#: Paths of reads that are logged: each is a POST, which another site cannot send in a user's name.
LOGGED_READS = ("/job", "/api/v1/job")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Admits requests, and adds their user and the token for forms to ``scope``."""

    def __init__(self, app: ASGIApp, access: Access, answer: Callable[[Request, Refused], Response]) -> None:
        self._app = app
        self._access = access
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        known = _token(scope)
        self._access.proxies.read(scope)
        scope[USER], scope[TOKEN] = NOBODY, known or secrets.token_urlsafe(24)
        sends = _with_headers(scope, send, new_token=not known)
        try:
            await self._check(scope)
        except Refused as refused:
            response = self._answer(Request(scope, receive), refused)
            if isinstance(refused, Unauthorized):
                response.headers["WWW-Authenticate"] = 'Basic realm="celery-lowkiq", charset="UTF-8"'
            if isinstance(refused, TooManyTries):
                response.headers["Retry-After"] = str(refused.after)
            _log_refusal(scope, refused)
            await response(scope, receive, sends)
            return
        await self._app(scope, receive, sends)

    async def _check(self, scope: Scope) -> None:
        if not scope.get("query_string", b"").isascii():
            # Starlette decodes it as UTF-8.
            raise Refused("the query is invalid: expected ASCII. Escape other characters with %", 400)
        if path_of(scope) in PUBLIC:
            return
        scope[USER] = await self._access.user(scope)
        if scope["method"] in READS:
            return
        if path_of(scope) not in LOGGED_READS:
            self._check_right(scope)
        _check_origin(scope, self._access.origins)

    def _check_right(self, scope: Scope) -> None:
        if self._access.read_only:
            raise Refused("the dashboard is read-only")
        if not user_of(scope).may_change:
            raise Refused("your role, viewer, permits no changes")


def check_token(request: Request, given: str) -> None:
    """Check that a form has the token of the cookie, which no other site can read. Raises Refused."""
    known = _token(request.scope)
    if known is None or not secrets.compare_digest(given.encode(), known.encode()):
        raise Refused("the form is not of this session: go back, load the page again, and repeat")


def user_of(scope: Scope) -> User:
    """Return the user of an admitted request."""
    user: User = scope[USER]
    return user


def _log_refusal(scope: Scope, refused: Refused) -> None:
    """Log refused changes and wrong passwords; a browser's first request has none."""
    if scope["method"] in READS and not Headers(scope=scope).get("authorization"):
        return
    who = f"user={user_of(scope).name!a} from={address_of(Request(scope))!a}"
    logger.warning("refused: %s %s %a: %s", who, scope["method"], path_of(scope)[:200], refused)


def path_of(scope: Scope) -> str:
    """Return the path of a request without the prefix of the dashboard."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _token(scope: Scope) -> str | None:
    # Not http.cookies, which finds none beside one that it does not understand, such as JSON.
    return cookie_parser(Headers(scope=scope).get("cookie", "")).get(COOKIE) or None


def _check_origin(scope: Scope, allowed: tuple[str, ...]) -> None:
    """Refuse a change from another origin. Without these headers, the form token protects the user."""
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and origin not in allowed:
        raise Refused("the change comes from another site")
    if origin is not None and origin not in allowed and origin != _own_origin(scope, headers):
        raise Refused(
            f"the change comes from another origin, {origin[:100]!r}: behind a proxy that renames the host "
            "or ends TLS, allow it with origins="
        )


def _own_origin(scope: Scope, headers: Headers) -> str | None:
    """The origin as browsers write it; with the scheme of a proxy if the server trusts the proxy."""
    host = headers.get("host")
    return f"{scope.get('scheme', 'http')}://{host}" if host else None


def _with_headers(scope: Scope, send: Send, new_token: bool) -> Send:
    async def sends(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            if new_token and headers.get("content-type", "").startswith("text/html"):
                headers.append("Set-Cookie", _cookie(scope))
        await send(message)

    return sends


def _cookie(scope: dict[str, Any] | Any) -> str:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    path = scope.get("root_path", "") or "/"
    return f"{COOKIE}={scope[TOKEN]}; Path={path}; HttpOnly; SameSite=Strict{secure}"
