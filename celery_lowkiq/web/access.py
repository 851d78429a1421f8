"""Who may use the dashboard.

Without any authentication only a browser on the same machine may: its address is loopback, and so is the
name by which it asks (a page of a stranger can point a name of its own at 127.0.0.1, but not that one).
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

#: Finds the user's name; None, "" and whatever is no text refuse.
FindUser = Callable[[Request], "str | Awaitable[str | None] | None"]

#: As a browser sends it. Starlette reads the server's own address where the header makes no sense.
HOST = re.compile(r"(\[[^\[\]]+\]|[^\s:@/\\?#\[\]]+)(?::\d*)?")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Unauthorized(Refused):
    """Ask for a name and a password."""

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
    """The user whom a reverse proxy names in a header. Nobody else may reach the port."""
    return lambda request: request.headers.get(name)


def is_loopback(host: str) -> bool:
    """Whether an address or a name to bind to is reached from this machine only."""
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
    """From ``user:password``. Raises ConfigurationError, which does not quote it."""
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise ConfigurationError("the value of lowkiq_web_auth is invalid: expected 'user:password'")
    return basic(user, password)


@dataclass(frozen=True)
class Access:
    """How users are found, whether they may change anything, and from which origins."""

    find_user: FindUser = _local
    read_only: bool = False
    #: Beside the one that the request was sent to, as a proxy may have renamed it.
    origins: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked who he is."""
        return self.find_user is _local

    async def user(self, scope: Scope) -> str:
        """Who asks. Raises Refused."""
        request = Request(scope)
        user = await run_in_threadpool(self.find_user, request)
        # What it gave decides, not how it was defined: a lambda or an object may be async, too.
        if inspect.isawaitable(user):
            user = await user
        if not user:
            raise Refused("you are not logged in, or may not see the dashboard")
        if not isinstance(user, str):
            raise Refused(f"auth= returned a {type(user).__name__}: expected the user's name as a str")
        return user[:200]
