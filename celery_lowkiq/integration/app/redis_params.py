"""Arguments of the Redis connection, from ``lowkiq_url`` or ``broker_url`` and Celery's Redis settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app import backends
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.url import url_to_parts

from celery_lowkiq.rules.errors import ConfigurationError

from .current_app import NO_APP, is_made_up
from .settings import Settings

#: Schemes of URLs, and what Celery calls the same: Valkey speaks Redis's protocol.
SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+socket": "redis+socket",
    "unix": "redis+socket",
    "sentinel": "sentinel",
}
#: Of a sentinel, as kombu has it.
SENTINEL_PORT = 26379
#: Seconds that Redis may be silent. Shorter than a lease: a hanging call must not cost a node its shards.
SOCKET_TIMEOUTS = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0}
#: Broker options that say how to reach Redis, when the broker's Redis is ours, too.
FROM_BROKER = (
    "socket_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "health_check_interval",
    "client_name",
)
FORMS = (
    "redis:// or valkey://user:password@host:port/db, rediss:// or valkeys://...?ssl_cert_reqs=required, "
    "redis+socket:///path?virtual_host=db, unix:///path?db=db, or sentinel://host:port;sentinel://host:port"
    "?master_name=name, with percent-encoding in user and password"
)


def parameters(app: Celery, settings: Settings) -> dict[str, Any]:
    """Arguments of a redis-py connection, as Celery's Redis backend would make them from the URL."""
    source, url = source_of(app, settings)
    if url.startswith("sentinel://"):
        return _behind_sentinels(app, source, url, settings)
    backend = _backend(app, source, url.partition(";")[0] if source == "broker_url" else url)
    return _merged(backend, app, settings) | settings.redis_options


def source_of(app: Celery, settings: Settings) -> tuple[str, str]:
    """The setting that says where Redis is, and its URL. Raises ConfigurationError when there is none."""
    source = "lowkiq_url" if settings.url else "broker_url"
    url = settings.url or _broker_url(app)
    scheme, separator, rest = url.partition("://")
    if not separator:
        if is_made_up(app):
            raise ConfigurationError(NO_APP)
        scheme = "(no scheme)"  # what stands there instead may be a password
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"ordered tasks need Redis, but {source} is a {scheme!r} URL: "
            f"set lowkiq_url to one that begins with {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    if not settings.url and scheme not in TRANSPORT_ALIASES and scheme != "redis+socket":
        raise ConfigurationError(
            f"broker_url is a {scheme!r} URL, which Celery does not know: write {SCHEMES[scheme]}://, which "
            "means the same there, or set lowkiq_url"
        )
    return source, f"{SCHEMES[scheme]}://{rest}"


def _broker_url(app: Celery) -> str:
    """Of a broker with several URLs the first; a sentinel's make one together."""
    url = app.conf.broker_write_url or app.conf.broker_url
    urls = [str(each) for each in (url if isinstance(url, (list, tuple)) else [url])]
    return ";".join(urls) if urls[0].startswith("sentinel://") else urls[0]


def _backend(app: Celery, source: str, url: str) -> Any:
    """Celery's backend for the URL, which knows what the URL and Celery's Redis settings mean."""
    by_url: Any = backends.by_url
    try:
        backend_class, url = by_url(url, app.loader)
        return backend_class(app=app, url=url)
    except (ValueError, TypeError):
        # Its message, and the cause with it, may quote the password.
        raise ConfigurationError(f"{source}: its value is not allowed; allowed: {FORMS}") from None


def check_arguments(pool: Any) -> None:
    """redis-py reads a connection's arguments only when it connects: too late for a typing error."""
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise ConfigurationError(
            f"lowkiq_redis_options: not arguments of a redis-py connection: {error}"
        ) from None


def _merged(backend: Any, app: Celery, settings: Settings) -> dict[str, Any]:
    found = {**backend.connparams, **SOCKET_TIMEOUTS}
    for name in ("max_connections", "retry_on_timeout"):
        found.pop(name, None)
    options = {} if settings.url else app.conf.broker_transport_options
    return found | {name: options[name] for name in FROM_BROKER if name in options}


def _behind_sentinels(app: Celery, source: str, url: str, settings: Settings) -> dict[str, Any]:
    """Of a master that sentinels name: ``;`` stands between them, and the first has user, password and db."""
    parts = [part if "://" in part else f"sentinel://{part}" for part in url.split(";") if part]
    if any(not part.startswith("sentinel://") for part in parts):
        raise ConfigurationError(f"{source}: its value is not allowed; allowed: {FORMS}")
    backend = _backend(app, source, ";".join(parts))
    found = _merged(backend, app, settings)
    hosts = found.pop("hosts")
    named = next((host["master_name"] for host in hosts if host.get("master_name")), None)
    named = settings.redis_options.get("master_name") or named
    options = _sentinel_options(app, backend._transport_options, settings, bool(named))
    ports = [url_to_parts(part).port or SENTINEL_PORT for part in parts]
    found["sentinels"] = [(host["host"], port) for host, port in zip(hosts, ports, strict=True)]
    found["master_name"] = named or options.get("master_name")
    found["sentinel_kwargs"] = options.get("sentinel_kwargs")
    found |= settings.redis_options
    if not found["master_name"]:
        raise ConfigurationError(
            f"{source} is a sentinel:// URL without the name of its master: expected it at its end, as "
            "?master_name=..., or as {'master_name': ...} in lowkiq_redis_options, "
            "result_backend_transport_options, or the broker_transport_options of a sentinel:// broker"
        )
    return found


def _sentinel_options(
    app: Celery, own: Mapping[str, Any], settings: Settings, named: bool
) -> Mapping[str, Any]:
    """From where the name of the master and the password of the sentinels are taken, together. The broker's
    sentinels may be others: with a lowkiq_url they are asked when nothing else names the master.
    """
    known = named or own.get("master_name") or not _broker_url(app).startswith("sentinel://")
    return own if settings.url and known else {**own, **app.conf.broker_transport_options}
