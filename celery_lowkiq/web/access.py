"""Authentication of the dashboard's users.

Without authentication, only browsers on the same machine are answered: the client's address and the host
name in the request must be loopback. A foreign page can resolve its own name to 127.0.0.1, but not these.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Scope

from celery_lowkiq.rules.errors import ConfigurationError

from .errors import Refused

#: Returns the user's name; any value but a text that is not empty refuses the request.
FindUser = Callable[[Request], "str | Awaitable[str | None] | None"]

#: The Host header of browsers. For an invalid one, Starlette falls back to the server's own address.
HOST = re.compile(r"(\[[^\[\]]+\]|[^\s:@/\\?#\[\]]+)(?::\d*)?")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Unauthorized(Refused):
    """The request lacks a valid name and password."""

    def __init__(self) -> None:
        super().__init__("log in with the name and password of the dashboard", 401)


def basic(user: str, password: str) -> FindUser:
    """HTTP basic authentication with one name and password."""
    expected = f"{user}:{password}".encode()

    def find(request: Request) -> str | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            decoded = base64.b64decode(given.encode(), validate=True) if scheme.lower() == "basic" else b""
        except (binascii.Error, UnicodeError):
            decoded = b""
        if not hmac.compare_digest(decoded, expected):
            raise Unauthorized
        return user

    return find


def header(name: str) -> FindUser:
    """The user that a reverse proxy names in a header. Only the proxy may reach the port."""
    return lambda request: request.headers.get(name)


def is_loopback(host: str) -> bool:
    """Whether an address or a host name is reachable from this machine only."""
    if host.lower() in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _local(request: Request) -> str:
    asked_for = HOST.fullmatch(request.headers.get("host", ""))
    name = asked_for[1].strip("[]").rstrip(".") if asked_for else ""
    if request.client is None or not is_loopback(request.client.host) or not is_loopback(name):
        raise Refused(
            "without authentication the dashboard answers this machine only (http://localhost...): "
            "set lowkiq_web_auth, or LOWKIQ_WEB_AUTH, to 'user:password'"
        )
    return "local"


def read_basic(text: str) -> FindUser:
    """Return basic authentication for ``user:password``. Raises ConfigurationError without quoting it."""
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise ConfigurationError("the value of lowkiq_web_auth is invalid: expected 'user:password'")
    return basic(user, password)


@dataclass(frozen=True)
class Access:
    """How users authenticate, whether they may change anything, and from which origins."""

    find_user: FindUser = _local
    read_only: bool = False
    #: Accepted beside the origin of the dashboard itself, which a proxy may rename.
    origins: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether there is no authentication."""
        return self.find_user is _local

    async def user(self, scope: Scope) -> str:
        """Return the user of a request. Raises Refused."""
        request = Request(scope)
        user = await run_in_threadpool(self.find_user, request)
        # The returned value is checked, since a lambda or an object may be async, too.
        if inspect.isawaitable(user):
            user = await user
        if not user:
            raise Refused("you are not logged in, or not allowed to see the dashboard")
        if not isinstance(user, str):
            raise Refused(f"auth= returned a {type(user).__name__}: expected the user's name as a str")
        return user[:200]
