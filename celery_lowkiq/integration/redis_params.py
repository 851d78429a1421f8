"""Redis connection parameters from ``lowkiq_url`` or ``broker_url`` and Celery's Redis settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery.app import backends
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.url import url_to_parts

from celery_lowkiq.integration.current import NO_APP, is_fallback_app
from celery_lowkiq.integration.settings import Settings
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.text import host_port
from celery_lowkiq.rules.validators import invalid

#: Accepted URL schemes, and Celery's name for each.
SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+socket": "redis+socket",
    "unix": "redis+socket",
    "sentinel": "sentinel",
}
#: URLs of clusters among these; and Celery's name for a URL of one of their nodes.
CLUSTER_SCHEMES = {
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
    "valkey+cluster": "redis",
    "valkeys+cluster": "rediss",
}
#: Default port of a node of a cluster.
DEFAULT_PORT = 6379
#: Default port of a sentinel, as in kombu.
SENTINEL_PORT = 26379
#: Timeouts in s. Shorter than a lease, so that a hanging call does not cost a node its shards.
SOCKET_TIMEOUTS = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0}
#: On a cluster, a thread waits as long for an unresponsive master, and shards of other masters wait for it.
#: Longer than a WAIT: `store/durability.py`.
CLUSTER_TIMEOUTS = {"socket_timeout": 0.75, "socket_connect_timeout": 0.75}
#: Options taken from ``broker_transport_options`` when Lowkiq uses the broker's Redis.
FROM_BROKER = (
    "socket_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "health_check_interval",
    "client_name",
)
NO_URL = (
    "ordered tasks need Redis, but neither broker_url nor lowkiq_url is set: set one to redis://host:6379/0; "
    "in a test, the fixture lowkiq brings a Redis of its own"
)
#: kombu's name of the text in front of all keys.
PREFIX = "global_keyprefix"
#: Arguments of redis-py's Sentinel, read where the name of the master was found.
OF_SENTINELS = ("sentinel_kwargs", "min_other_sentinels")
FORMS = (
    "redis:// or valkey://user:password@host:port/db, rediss:// or valkeys://...?ssl_cert_reqs=required, "
    "redis+socket:///path?virtual_host=db, unix:///path?db=db, sentinel://host:port;sentinel://host:port"
    "?master_name=name, redis+cluster://user:password@host:port,host:port, or "
    "rediss+cluster://...?ssl_cert_reqs=required, with percent-encoding in user and password"
)


def parameters(app: Celery, settings: Settings) -> dict[str, Any]:
    """Derive the arguments of a redis-py connection from the URL, like Celery's Redis backend."""
    source, url = source_of(app, settings)
    if url.startswith("sentinel://"):
        return _behind_sentinels(app, source, url, settings)
    if url.partition("://")[0] in CLUSTER_SCHEMES:
        return _of_cluster(app, source, url, settings)
    url = url.partition(";")[0] if source == "broker_url" else url
    return _merged(_backend(app, source, url, settings), app, settings) | _own(settings)


def key_prefix(app: Celery, settings: Settings) -> str:
    """Return the text in front of all keys and channels of the store: that of ``lowkiq_redis_options``, or
    else, where the broker is the store, that of the broker's keys. Raises ConfigurationError.
    """
    prefix = settings.redis_options.get(PREFIX)
    is_broker = not settings.url or _place(settings.url, **_own(settings)) == _place(_broker_url(app))
    if prefix is None and is_broker:
        prefix = app.conf.broker_transport_options.get(PREFIX)
    if prefix is None:
        return ""
    if not (isinstance(prefix, str) and prefix.isprintable() and not re.search("[{} ]", prefix)):
        expected = (
            "printable characters without space and braces, which choose the slot of a key in a cluster"
        )
        fix = "Give another one for the ordered queues in lowkiq_redis_options, or '' for none"
        raise ConfigurationError(invalid(PREFIX, prefix, expected, fix))
    return prefix


def _place(url: str, db: Any = None, **_: Any) -> Any:
    """Return address and database of the URL of one server; of others, the URL. ``db`` replaces the URL's."""
    try:
        parts = url_to_parts(url)
    except ValueError:
        return url
    path, in_query = (parts.path or "").strip("/"), parts.query.get("virtual_host") or parts.query.get("db")
    if SCHEMES.get(parts.scheme) == "redis+socket":
        return path, str(db or in_query or 0)
    database = str(db or in_query or path or 0)
    return parts.hostname or "localhost", parts.port or DEFAULT_PORT, database


def _own(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings.redis_options.items() if name != PREFIX}


def shown_address(parameters: Mapping[str, Any]) -> str:
    """Return the address of Redis as a URL for logs: without user, password and options."""
    if "path" in parameters:
        return f"redis+socket://{parameters['path']}"
    tls = "s" if parameters.get("ssl") or any(name.startswith("ssl_") for name in parameters) else ""
    db = parameters.get("db") or 0
    if "sentinels" in parameters:
        return f"sentinel://{_joined(parameters['sentinels'])}/{db}?master_name={parameters['master_name']}"
    if "cluster" in parameters:
        return f"redis{tls}+cluster://{_joined(parameters['cluster'])}"
    address = parameters.get("host") or "localhost", parameters.get("port") or DEFAULT_PORT
    return f"redis{tls}://{_joined([address])}/{db}"


def _joined(addresses: Iterable[tuple[str, int]]) -> str:
    return ",".join(host_port(host, port) for host, port in addresses)


def source_of(app: Celery, settings: Settings) -> tuple[str, str]:
    """Return the setting that names Redis, and its URL. Raises ConfigurationError for an unusable URL."""
    source = "lowkiq_url" if settings.url else "broker_url"
    url = settings.url or _broker_url(app)
    scheme, separator, rest = url.partition("://")
    if not separator:
        if is_fallback_app(app):
            raise ConfigurationError(NO_APP)
        if not url:
            raise ConfigurationError(NO_URL)
        scheme = "(no scheme)"  # the text may be a password
    if scheme in CLUSTER_SCHEMES:
        if settings.url:
            return source, url
        raise ConfigurationError(
            f"broker_url is a {scheme!r} URL: expected a broker that Celery supports, because it has no "
            "transport for a cluster. Set lowkiq_url to this URL, and broker_url to another broker"
        )
    if scheme not in SCHEMES:
        known = [*SCHEMES, *CLUSTER_SCHEMES]
        raise ConfigurationError(
            f"ordered tasks need Redis, but {source} is a {scheme!r} URL: "
            f"set lowkiq_url to one that begins with {', '.join(f'{s}://' for s in known)}"
        )
    if not settings.url and scheme not in TRANSPORT_ALIASES and scheme != "redis+socket":
        raise ConfigurationError(
            f"broker_url is a {scheme!r} URL, which Celery does not support: write the equivalent "
            f"{SCHEMES[scheme]}://, or set lowkiq_url"
        )
    return source, f"{SCHEMES[scheme]}://{rest}"


def _broker_url(app: Celery) -> str:
    """Return the first of several broker URLs, '' without one; sentinel URLs are joined."""
    url = app.conf.broker_write_url or app.conf.broker_url or ""
    urls = [str(each) for each in (url if isinstance(url, (list, tuple)) else [url])]
    return ";".join(urls) if urls[0].startswith("sentinel://") else urls[0]


def _backend(app: Celery, source: str, url: str, settings: Settings) -> Any:
    """Return Celery's result backend for the URL, which parses the URL and Celery's Redis settings."""
    by_url: Any = backends.by_url
    # Celery's backend wants rediss:// for TLS options in a setting of its own, and options in the URL for rediss://.
    if app.conf.redis_backend_use_ssl:
        url = re.sub("^redis:", "rediss:", url)
    elif _tls(app, settings):
        url = re.sub("^rediss:", "redis:", url)
    try:
        backend_class, url = by_url(url, app.loader)
        return backend_class(app=app, url=url)
    except (ValueError, TypeError) as error:
        # The message and the cause may quote the password.
        raise (_no_tls_options(source) if "ssl_cert_reqs" in str(error) else _invalid_url(source)) from None


def check_arguments(pool: Any) -> None:
    """Raise ConfigurationError for unknown arguments now, because redis-py raises when it connects."""
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise ConfigurationError(
            f"lowkiq_redis_options is invalid: expected arguments of a redis-py connection: {error}"
        ) from None


def _merged(backend: Any, app: Celery, settings: Settings) -> dict[str, Any]:
    arguments = {**backend.connparams, **SOCKET_TIMEOUTS, **_tls(app, settings)}
    for name in ("max_connections", "retry_on_timeout"):
        arguments.pop(name, None)
    options = {} if settings.url else app.conf.broker_transport_options
    return arguments | {name: options[name] for name in FROM_BROKER if name in options}


def _tls(app: Celery, settings: Settings, of_broker: bool = False) -> dict[str, Any]:
    """Return the arguments of TLS that are neither in the URL nor in the setting of Celery's backend.

    Those of the broker count where it is the store, or if ``of_broker``.
    """
    url = settings.url or _broker_url(app)
    if app.conf.redis_backend_use_ssl or "ssl_" in url:
        return {}
    given = app.conf.broker_use_ssl if of_broker or not settings.url else None
    if isinstance(given, Mapping):
        return {**given, "ssl": True}
    own = settings.redis_options
    has_own = own.get("ssl", True) and any(name.startswith("ssl") for name in own)
    is_tls = (SCHEMES | CLUSTER_SCHEMES).get(url.partition("://")[0]) == "rediss"
    return {"ssl": True} if has_own and is_tls else {}


def _no_tls_options(source: str) -> ConfigurationError:
    return ConfigurationError(
        f"{source} is invalid: expected ssl_cert_reqs=required, optional or none at the end of a URL with "
        "TLS, as in rediss://host:port/0?ssl_cert_reqs=required or "
        "rediss+cluster://host:port?ssl_cert_reqs=required. Or set the options of TLS in "
        'lowkiq_redis_options, as {"ssl_ca_certs": "/etc/ca.pem"}'
    )


def _invalid_url(source: str) -> ConfigurationError:
    return ConfigurationError(f"{source} is invalid: expected {FORMS}")


def _of_cluster(app: Celery, source: str, url: str, settings: Settings) -> dict[str, Any]:
    """Return the parameters for a cluster; each node has the user, password and options of the URL."""
    scheme, _, rest = url.partition("://")
    hosts = re.split("[/?#]", rest, maxsplit=1)[0]
    login, at, hosts = hosts.rpartition("@")
    tail = rest[len(login + at + hosts) :]
    if "," in login:
        # A login for each node, or for a later one, would become one long user or password.
        raise ConfigurationError(
            f"{source} is invalid: expected user and password once, before the first host, as in "
            "redis+cluster://user:password@host:port,host:port. They are those of each node; write a comma "
            "in them as %2C"
        )
    try:
        parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
        seeds = [(part.hostname or "", part.port or DEFAULT_PORT) for part in parts]
    except ValueError:
        raise _invalid_url(source) from None
    if not all(host for host, _ in seeds):
        raise _invalid_url(source)
    first = f"{CLUSTER_SCHEMES[scheme]}://{login}{at}{hosts.partition(',')[0]}{tail}"
    arguments = (
        _merged(_backend(app, source, first, settings), app, settings) | CLUSTER_TIMEOUTS | _own(settings)
    )
    if db := arguments.pop("db", 0):
        raise ConfigurationError(
            f"{source} is a cluster's URL with db={db!r}: expected none, or 0. A cluster has only database 0"
        )
    for name in ("host", "port"):
        arguments.pop(name, None)
    return {**arguments, "cluster": seeds}


def _behind_sentinels(app: Celery, source: str, url: str, settings: Settings) -> dict[str, Any]:
    """Return the parameters for a master behind sentinels, from URLs separated by ``;``.

    The first URL has user, password and db. With a lowkiq_url, the broker's options and its TLS, which may be
    of other sentinels and masters, are used only when nothing else names the master.
    """
    parts = [part if "://" in part else f"sentinel://{part}" for part in url.split(";") if part]
    if any(not part.startswith("sentinel://") for part in parts):
        raise _invalid_url(source)
    backend = _backend(app, source, ";".join(parts), settings)
    arguments = _merged(backend, app, settings)
    hosts = arguments.pop("hosts")
    master = next((host["master_name"] for host in hosts if host.get("master_name")), None)
    master = settings.redis_options.get("master_name") or master
    own = backend._transport_options
    is_named = master or own.get("master_name")
    inherits = not settings.url or (not is_named and _broker_url(app).startswith("sentinel://"))
    options = {**own, **app.conf.broker_transport_options} if inherits else own
    arguments |= _tls(app, settings, of_broker=inherits)
    ports = [url_to_parts(part).port or SENTINEL_PORT for part in parts]
    arguments["sentinels"] = [(host["host"], port) for host, port in zip(hosts, ports, strict=True)]
    arguments["master_name"] = master or options.get("master_name")
    arguments |= {name: options.get(name) for name in OF_SENTINELS}
    arguments |= _own(settings)
    if not arguments["master_name"]:
        raise ConfigurationError(
            f"{source} is a sentinel:// URL without the name of its master: expected it at its end, as "
            "?master_name=..., or as {'master_name': ...} in lowkiq_redis_options, "
            "result_backend_transport_options, or the broker_transport_options of a sentinel:// broker"
        )
    return arguments
