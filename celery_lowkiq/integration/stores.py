"""One store for each app and process, from Celery's own Redis settings."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.app import backends

from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import CallRecord, QueueSpec
from celery_lowkiq.store.actions import Actions, Left
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.durability import Durability, Level
from celery_lowkiq.store.examination import Examination
from celery_lowkiq.store.lookout import Lookout
from celery_lowkiq.store.pausing import Pausing
from celery_lowkiq.store.queries import Queries
from celery_lowkiq.store.registry import Registry
from celery_lowkiq.store.store import RedisStore
from celery_lowkiq.store.tracks import Tracks
from celery_lowkiq.worker.forks import ProcessLock

from .codec import Codec
from .settings import LARGEST_PAYLOAD, Settings, read_settings

logger = logging.getLogger("celery_lowkiq")

SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")
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
    "master_name",
    "sentinel_kwargs",
)
FORMS = (
    "redis://user:password@host:port/db, rediss://...?ssl_cert_reqs=required, redis+socket:///path or "
    "sentinel://host:port;sentinel://host:port, with percent-encoding in user and password"
)
#: Connections beside those of lanes and callers: announcements, leases.
SPARE_CONNECTIONS = 3


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

    def open_store(self, callers: int) -> RedisStore:
        """A store with connections for so many threads. Raises ConfigurationError."""
        client = connect(
            parameters(self._app, self.settings),
            pool_size=callers + SPARE_CONNECTIONS,
            pool_timeout=self.settings.pool_timeout,
        )
        _check_arguments(client.connection_pool)
        durability = Durability(Level(self.settings.push_durability), self.settings.push_replicas)
        return RedisStore(client, durability)

    def _dropped(self, queue: QueueSpec, calls: Sequence[CallRecord]) -> None:
        """End the calls that a push dropped. The push is over: what fails here is only logged."""
        from .leftovers import DROPPED, end_leftovers
        from .selection import ordered_tasks

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
    source = "lowkiq_url" if settings.url else "broker_url"
    url = settings.url or _first(app.conf.broker_write_url or app.conf.broker_url)
    scheme, separator, _ = str(url).partition("://")
    if not separator:
        scheme = "(no scheme)"  # what stands there instead may be a password
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"ordered tasks need Redis, but {source} is a {scheme!r} URL: "
            f"set lowkiq_url to one that begins with {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    from_broker = {} if settings.url else app.conf.broker_transport_options
    return _merged(_backend(app, source, url), from_broker, settings)


def _first(url: Any) -> str:
    """Of a broker with several URLs the first; a sentinel's make one together."""
    text = str(url[0] if isinstance(url, (list, tuple)) else url)
    return text if text.startswith("sentinel://") else text.partition(";")[0]


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


def _merged(backend: Any, from_broker: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    found = {**backend.connparams, **SOCKET_TIMEOUTS}
    for name in ("max_connections", "retry_on_timeout"):
        found.pop(name, None)
    if "hosts" in found:
        hosts = found.pop("hosts")
        found["sentinels"] = [(host["host"], int(host["port"])) for host in hosts]
        found["master_name"] = backend._transport_options.get("master_name")
        found["sentinel_kwargs"] = backend._transport_options.get("sentinel_kwargs")
    found |= {name: from_broker[name] for name in FROM_BROKER if name in from_broker}
    if "sentinels" not in found:
        found.pop("master_name", None)
        found.pop("sentinel_kwargs", None)
    found |= settings.redis_options
    if "sentinels" in found and not found["master_name"]:
        raise ConfigurationError(
            "a sentinel:// URL needs the name of the master: set result_backend_transport_options "
            'to {"master_name": ...}, or lowkiq_redis_options'
        )
    return found
