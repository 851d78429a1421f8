"""Authentication of the dashboard's users, and their roles.

Without authentication, only browsers on the same machine are answered: the client's address and the host
name in the request must be loopback, and no proxy may have forwarded it. A foreign page can resolve its own
name to 127.0.0.1, but not these.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Scope

from celery_lowkiq.integration.app.setting_validators import EVERYBODY, Role, read_logins
from celery_lowkiq.rules.errors import ConfigurationError

from .errors import Refused
from .login_tries import LoginTries, TooManyTries
from .proxies import Proxies, address_of, is_loopback, looks_forwarded

VIEWER: Role = "viewer"
OPERATOR: Role = "operator"


class User(NamedTuple):
    """Who asks. ``sees_plain``: whether secrets are shown on demand; None: to operators.

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


class Unauthorized(Refused):
    """The request lacks a valid name and password."""

    def __init__(self) -> None:
        super().__init__("log in with the name and password of the dashboard", 401)


def basic(*logins: str, tries: LoginTries | None = None) -> FindUser:
    """HTTP basic authentication, each login as ``user:password``; wrong ones are limited by address."""
    known = [login.encode() for login in logins]
    limit = tries or LoginTries()

    def find(request: Request) -> str | None:
        given = _given(request)
        address = address_of(request)
        limit.check(address)
        # Each is compared, so that the time does not tell which name is known.
        found = [login for login in known if hmac.compare_digest(given, login)]
        if not found:
            if given:
                limit.failed(address)
            raise Unauthorized
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
        """Whether there is no authentication."""
        return self.find_user is _local

    async def user(self, scope: Scope) -> User:
        """Return the user of a request. Raises Refused."""
        request = Request(scope)
        found = await run_in_threadpool(self.find_user, request)
        # The returned value is checked, since a lambda or an object may be async, too.
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


__all__ = ["OPERATOR", "VIEWER", "Access", "FindUser", "TooManyTries", "Unauthorized", "User", "basic"]
