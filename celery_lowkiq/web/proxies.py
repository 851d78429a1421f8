"""Reverse proxies: which are trusted, and what they say about a browser."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from celery_lowkiq.integration.app.setting_validators import Network

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
        """Whether a trusted proxy sent the request."""
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
        # What browsers write themselves is at the left of what the proxies add.
        browser = next((hop for hop in reversed(hops) if not self._trusts(hop)), "")
        if is_address(browser):
            scope["client"] = (browser, 0)
        scheme = headers.get("x-forwarded-proto", "")
        if scheme in ("http", "https"):
            scope["scheme"] = scheme

    def _trusts(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.networks)


def looks_forwarded(request: Request) -> bool:
    """Whether a proxy has forwarded a request: by its headers, or by HTTP/1.0, which nginx speaks."""
    names = request.headers.keys()
    return request.scope.get("http_version") == "1.0" or any(
        name in FORWARDED or (name.startswith(FORWARDED_PREFIXES) and name not in OF_PAGES) for name in names
    )


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address or a host name is reachable from this machine only."""
    if host.lower() in LOCAL_NAMES:
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback


def address_of(request: Request) -> str:
    """The address of who asks; "?" when it is unknown."""
    return request.client.host if request.client else "?"


def subscriber(address: str) -> str:
    """The part of an address that one subscriber has: of IPv6 the first 64 bits."""
    if ":" not in address or not is_address(address):
        return address
    plain = address.partition("%")[0]
    # How a socket for both versions names IPv4.
    mapped = ipaddress.IPv6Address(plain).ipv4_mapped
    return str(mapped or ipaddress.ip_network(f"{plain}/64", strict=False))
