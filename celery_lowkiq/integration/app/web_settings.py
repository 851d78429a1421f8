"""Settings of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from celery_lowkiq.rules.times import RELATIVE, Times
from celery_lowkiq.rules.validators import Validator, boolean, text

from .setting_field import setting
from .setting_validators import Network, Role, read_logins, read_networks, read_roles, read_times


@dataclass(frozen=True)
class WebSettings:
    """The settings of the dashboard, read and checked; see ``settings.Settings``."""

    web_auth: tuple[str, ...] = setting(
        (),
        Validator("'user:password', or a list of these", read_logins),
        "Names and passwords of the [dashboard](dashboard.md), by HTTP basic authentication. Empty: the "
        "environment variable `LOWKIQ_WEB_AUTH`, one in a line.",
        secret=True,
    )
    web_roles: dict[str, Role] = setting(
        {},
        Validator("a dict of user names, or '*', to 'viewer' or 'operator'", read_roles),
        "[Roles](permissions.md#roles-in-the-dashboard) of the dashboard's users; `*` is everybody else. "
        "Empty: all are operators. Otherwise, others are refused.",
    )
    web_user_header: str | None = setting(
        None,
        text("the name of a header").or_none(),
        "Header in which a reverse proxy names the dashboard's user. It needs "
        "`lowkiq_web_trusted_proxies` or `lowkiq_web_proxy_secret`.",
    )
    web_trusted_proxies: tuple[Network, ...] = setting(
        (),
        Validator("a list of addresses or networks, as '10.0.0.0/8'", read_networks),
        "Addresses of reverse proxies. Only they name a user by `lowkiq_web_user_header`, and the "
        "address and scheme of a browser by `X-Forwarded-For` and `X-Forwarded-Proto`.",
    )
    web_proxy_secret: str | None = setting(
        None,
        text("a text").or_none(),
        "What a reverse proxy sends in the header `X-Lowkiq-Proxy-Secret` of each request.",
        secret=True,
    )
    web_read_only: bool = setting(False, boolean, "Whether the dashboard refuses every change.")
    web_unpickle: bool = setting(
        False,
        boolean,
        "Whether the dashboard decodes payloads that are not JSON, as a worker would (only what "
        "`accept_content` allows). Otherwise it shows their bytes.",
    )
    web_times: Times = setting(
        RELATIVE,
        Validator("'relative', 'UTC' or the name of a time zone, as 'Europe/Berlin'", read_times),
        "How the dashboard and Flower's tab write times: `3 min ago`, or in that zone. In the dashboard, "
        "each reader may choose otherwise.",
    )
