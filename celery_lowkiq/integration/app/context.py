"""One store for each app and process, from Celery's own Redis settings."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.app import backends
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.url import url_to_parts

from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import CallRecord, QueueSpec
from celery_lowkiq.store.admin.actions import Actions, Left
from celery_lowkiq.store.admin.pausing import Pausing
from celery_lowkiq.store.admin.repair import QueueRepairs
from celery_lowkiq.store.inspect.health import Examination
from celery_lowkiq.store.inspect.node_reports import Lookout
from celery_lowkiq.store.inspect.queries import Queries
from celery_lowkiq.store.jobs.durability import Durability, Level
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.connect import connect
from celery_lowkiq.store.tracking.tracker_store import Tracks
from celery_lowkiq.worker.forks import ProcessLock

from .codec import Codec
from .current_app import NO_APP, is_made_up
from .settings import LARGEST_PAYLOAD, Settings, read_settings

logger = logging.getLogger("celery_lowkiq")

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


class Home:
    """What an app's ordered tasks share in this process."""

    def __init__(self, app: Celery) -> None:
        self.settings = read_settings(app)
        self.codec = Codec(self.settings.serializer, app.conf.accept_content, self.settings.max_payload_bytes)
        #: For records of calls: links and headers are no payload, and may be as large as one can be.
        self.record_codec = Codec(self.settings.serializer, app.conf.accept_content, LARGEST_PAYLOAD)
        self.pid = os.getpid()
        self._app = app
        self._lock = threading.Lock()
        self._store: RedisStore | None = None
        self._connection: Any = None

    @property
    def connection(self) -> Any:
        """To the broker, never connected: Celery asks a producer's connection which errors it may raise."""
        with self._lock:
            if self._connection is None:
                self._connection = self._app.connection_for_write()
            return self._connection

    @property
    def store(self) -> RedisStore:
        """For calls, listings and actions. Connects at its first use; raises ConfigurationError."""
        with self._lock:
            if self._store is None:
                self._store = self.open_store(self.settings.client_pool_size)
                self._store.dropped = self._dropped
            return self._store

    def open_store(self, connections: int) -> RedisStore:
        """A store with so many connections at most. Raises ConfigurationError."""
        client = connect(
            parameters(self._app, self.settings),
            pool_size=connections,
            pool_timeout=self.settings.pool_timeout,
        )
        _check_arguments(client.connection_pool)
        durability = Durability(Level(self.settings.push_durability), self.settings.push_replicas)
        return RedisStore(client, durability)

    def _dropped(self, queue: QueueSpec, calls: Sequence[CallRecord]) -> None:
        """End the calls that a push dropped. The push is over: what fails here is only logged."""
        from celery_lowkiq.integration.bootstep.queue_selection import ordered_tasks
        from celery_lowkiq.integration.records.orphans import DROPPED, end_leftovers

        try:
            end_leftovers(ordered_tasks(self._app)[queue.name], calls, dead=False, reason=DROPPED)
        except Exception:
            logger.exception("%d calls of %r were dropped and not told", len(calls), queue.name)

    def check_serializer(self, name: str) -> None:
        """Raises ConfigurationError when this app may not read what the serializer writes."""
        Codec(name, self._app.conf.accept_content, LARGEST_PAYLOAD)

    @property
    def tracks(self) -> Tracks:
        return Tracks(self.store.client)

    @property
    def queries(self) -> Queries:
        return Queries(self.store)

    @property
    def lookout(self) -> Lookout:
        return Lookout(self.store)

    @property
    def pausing(self) -> Pausing:
        return Pausing(self.store.client)

    @property
    def registry(self) -> Registry:
        return Registry(self.store.client)

    @property
    def repairs(self) -> QueueRepairs:
        return QueueRepairs(self.store)

    @property
    def examination(self) -> Examination:
        return Examination(self.store)

    def actions(self, left: Left) -> Actions:
        """Changes to waiting and dead jobs; ``left`` hears of calls whose jobs are gone without a run."""
        return Actions(self.store, left)


_homes_lock = ProcessLock()


def home_of(app: Celery) -> Home:
    """The app's home. A forked child gets its own: connections and senders cannot be shared.

    Raises ConfigurationError for unknown or bad settings.
    """
    home: Home | None = app.__dict__.get("_lowkiq_home")
    if home is None or home.pid != os.getpid():
        with _homes_lock:
            home = app.__dict__.get("_lowkiq_home")
            if home is None or home.pid != os.getpid():
                home = Home(app)
                app.__dict__["_lowkiq_home"] = home
    return home


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


def _check_arguments(pool: Any) -> None:
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
