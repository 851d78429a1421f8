"""Access: users, roles, proxies, tokens, tries to log in."""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import ipaddress
import math
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_lowkiq.integration.settings import EVERYBODY, Network, Role, read_logins
from celery_lowkiq.rules.basics import audit_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.web.errors import Refused

# Reverse proxies: which are trusted, and what they say about a browser.

SECRET = "x-lowkiq-proxy-secret"  # noqa: S105 - the name of a header
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
#: Headers that proxies add, and browsers never send: also all that begin with X, but for those in OF_PAGES.
FORWARDED = ("forwarded", "via", "true-client-ip", "client-ip", "max-forwards", "traceparent", "tracestate")
FORWARDED_PREFIXES = ("x-", "cf-", "cdn-", "fastly-", "fly-", "proxy-", "remote-", "surrogate-", "tailscale-")
#: Headers that scripts of pages and extensions of browsers send.
OF_PAGES = ("x-requested-with",)
#: The address of the connection, before that of the browser replaces it.
PEER = "lowkiq.peer"


@dataclass(frozen=True)
class Proxies:
    """Reverse proxies that are trusted: by their addresses, by a secret that they send, or by both."""

    networks: tuple[Network, ...] = ()
    secret: str | None = None

    def __bool__(self) -> bool:
        return bool(self.networks or self.secret)

    def sent(self, request: Request) -> bool:
        """Return True if a trusted proxy sent the request."""
        peer = request.scope.get(PEER) or request.client
        if self.networks and not (peer and self._trusts(peer[0])):
            return False
        given = request.headers.get(SECRET, "").encode()
        return self.secret is None or hmac.compare_digest(given, self.secret.encode())

    def read(self, scope: Scope) -> None:
        """Put the address and the scheme of the browser into ``scope``, if a trusted proxy says them."""
        peer = scope.get("client")
        if not (self and peer and self.sent(Request(scope))):
            return
        headers = Headers(scope=scope)
        scope[PEER] = peer
        hops = [hop.strip() for hop in ",".join(headers.getlist("x-forwarded-for")).split(",") if hop.strip()]
        # Values that browsers write themselves are at the left of those that the proxies add.
        browser = next((hop for hop in reversed(hops) if not self._trusts(hop)), "")
        if ip_of(browser) is not None:
            scope["client"] = (browser, 0)
        scheme = headers.get("x-forwarded-proto", "")
        if scheme in ("http", "https"):
            scope["scheme"] = scheme

    def _trusts(self, host: str) -> bool:
        address = ip_of(host)
        plain = getattr(address, "ipv4_mapped", None) or address
        return plain is not None and any(plain in network for network in self.networks)


def looks_forwarded(request: Request) -> bool:
    """Return True if headers, or HTTP/1.0, which nginx speaks, show that a proxy has forwarded a request."""
    names = request.headers.keys()
    return request.scope.get("http_version") == "1.0" or any(
        name in FORWARDED or (name.startswith(FORWARDED_PREFIXES) and name not in OF_PAGES) for name in names
    )


def ip_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is; None for another text."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return True if an address or a host name is reachable from this machine only."""
    address = ip_of(host)
    return host.lower() in LOCAL_NAMES or (address is not None and address.is_loopback)


def address_of(request: Request) -> str:
    """Return the address of the client; "?" when it is unknown."""
    return request.client.host if request.client else "?"


def subscriber(address: str) -> str:
    """The part of an address that one subscriber has: of IPv6 the first 64 bits."""
    found = ip_of(address)
    if not isinstance(found, ipaddress.IPv6Address):
        return address
    # How a socket for both versions names IPv4.
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found), 64), strict=False))


# Limits wrong passwords by the address that they come from.

#: Wrong passwords that an address has at once, and seconds until it has another one.
BURST, EVERY = 10, 6.0
#: Maximum number of addresses that are remembered; the one that failed longest ago is forgotten.
MOST = 10_000


class LoginTries:
    """Counts wrong passwords by address. ``clock`` returns monotonic time in s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MOST) -> None:
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        #: By address: the time at which it has all its tries again.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def check(self, address: str) -> None:
        """Raises Refused after too many wrong passwords.

        A right password is not read then: the answer would show that it is right.
        """
        wait = self._full_at.get(subscriber(address), 0.0) - self._clock() - (BURST - 1) * EVERY
        if wait > 0:
            seconds = str(math.ceil(wait))
            text = f"too many wrong passwords from your address: wait {seconds} s"
            raise Refused(text, 429, **{"Retry-After": seconds})

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        key, now = subscriber(address), self._clock()
        with self._lock:
            self._full_at[key] = max(self._full_at.pop(key, 0.0), now) + EVERY
            if len(self._full_at) > self._most:
                self._full_at.popitem(last=False)


# Authentication of the dashboard's users, and their roles.
#
# Without authentication, only browsers on the same machine are answered: the client's address and the host
# name in the request must be loopback, and no proxy may have forwarded it. A foreign page can resolve its
# own name to 127.0.0.1, but not these.

VIEWER: Role = "viewer"
OPERATOR: Role = "operator"


class User(NamedTuple):
    """A user of the dashboard. ``sees_plain``: whether secrets are shown on demand; None: to operators.

    A viewer reads. An operator makes changes, too; to edit a payload needs ``sees_plain``.
    """

    name: str
    role: Role = OPERATOR
    sees_plain: bool | None = None

    @property
    def may_change(self) -> bool:
        return self.role == OPERATOR

    @property
    def may_see_plain(self) -> bool:
        return self.may_change if self.sees_plain is None else self.sees_plain


NOBODY = User("", VIEWER)
Found = str | User | None
#: Returns the user, or a name, whose role ``roles`` has; any other value refuses the request.
FindUser = Callable[[Request], "Found | Awaitable[Found]"]
#: Roles by name, or a function of the name.
Roles = Mapping[str, Role] | Callable[[str], Role | None]

#: The Host header of browsers. For an invalid one, Starlette falls back to the server's own address.
HOST = re.compile(r"(\[[^\[\]]+\]|[^\s:@/\\?#\[\]]+)(?::\d*)?")


#: Has a browser ask for name and password.
CHALLENGE = {"WWW-Authenticate": 'Basic realm="celery-lowkiq", charset="UTF-8"'}


def basic(*logins: str, tries: LoginTries | None = None) -> FindUser:
    """HTTP basic authentication, each login as ``user:password``; wrong ones are limited by address."""
    known = [login.encode() for login in logins]
    limit = tries or LoginTries()

    def find(request: Request) -> str | None:
        given = _given(request)
        address = address_of(request)
        limit.check(address)
        # Each is compared, so that the time does not show which name is known.
        found = [login for login in known if hmac.compare_digest(given, login)]
        if not found:
            if given:
                limit.failed(address)
            raise Refused("log in with the name and password of the dashboard", 401, **CHALLENGE)
        return found[0].partition(b":")[0].decode()

    return find


def _given(request: Request) -> bytes:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    try:
        return base64.b64decode(given.encode(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, UnicodeError):
        return b""


def header(name: str, proxies: Proxies) -> FindUser:
    """The user that a trusted reverse proxy names in a header. Raises ConfigurationError without one."""
    if not proxies:
        raise ConfigurationError(
            f"lowkiq_web_user_header={name!r} is invalid: expected a proxy that is trusted. Set "
            "lowkiq_web_trusted_proxies to its addresses, or lowkiq_web_proxy_secret to what it sends as "
            "X-Lowkiq-Proxy-Secret"
        )

    def find(request: Request) -> str | None:
        if not proxies.sent(request):
            raise Refused("the request does not come from a trusted proxy")
        given = request.headers.getlist(name)
        # Two of them: the proxy has added its own to that of the browser.
        return given[0] if len(given) == 1 else None

    return find


def _local(request: Request) -> str:
    asked_for = HOST.fullmatch(request.headers.get("host", ""))
    name = asked_for[1].strip("[]").rstrip(".") if asked_for else ""
    client = request.client
    if client is None or not is_loopback(client.host) or not is_loopback(name) or looks_forwarded(request):
        raise Refused(
            "without authentication the dashboard answers this machine only, and no proxy "
            "(http://localhost...): set lowkiq_web_auth, or LOWKIQ_WEB_AUTH, to 'user:password'"
        )
    return "local"


def read_basic(text: str) -> FindUser:
    """Return basic authentication for lines of ``user:password``.

    Raises ConfigurationError without quoting them.
    """
    try:
        return basic(*read_logins(text.splitlines()))
    except ValueError:
        raise ConfigurationError(
            "the value of lowkiq_web_auth is invalid: expected 'user:password', or a line for each user"
        ) from None


@dataclass(frozen=True)
class Access:
    """How users authenticate, whether they may change anything, and from which origins."""

    find_user: FindUser = _local
    read_only: bool = False
    #: Accepted beside the origin of the dashboard itself, which a proxy may rename.
    origins: tuple[str, ...] = ()
    #: Roles of the users of whom only a name is known. Empty: all are operators.
    roles: Roles = field(default_factory=dict)
    proxies: Proxies = field(default_factory=Proxies)

    @property
    def is_open(self) -> bool:
        """Access without authentication."""
        return self.find_user is _local

    async def user(self, scope: Scope) -> User:
        """Return the user of a request. Raises Refused."""
        request = Request(scope)
        found = await run_in_threadpool(self.find_user, request)
        # The returned value is checked, because a lambda or an object may be async, too.
        if inspect.isawaitable(found):
            found = await found
        if not found:
            raise Refused("you are not logged in, or not allowed to see the dashboard")
        if isinstance(found, str):
            found = User(found, self._role(found))
        if not isinstance(found, User) or found.role not in (VIEWER, OPERATOR):
            raise Refused(f"auth= returned a {type(found).__name__}: expected the user's name, or a User")
        return found._replace(name=found.name[:200])

    def _role(self, name: str) -> Role:
        if not self.roles:
            return OPERATOR
        roles = self.roles
        role = roles(name) if callable(roles) else roles.get(name) or roles.get(EVERYBODY)
        if role not in (VIEWER, OPERATOR):
            raise Refused(f"{name[:100]!r} has no role in the dashboard (lowkiq_web_roles)")
        return role


# Middleware before every page: authentication, origin and token checks, and security headers.

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
            response.headers.update(refused.headers)
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
