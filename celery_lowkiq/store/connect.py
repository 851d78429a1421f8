"""Connections: URLs, TLS, sentinels, and kept connections."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import redis
from redis import exceptions, sentinel
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.connection import DefaultParser
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from celery_lowkiq.rules.text import host_port
from celery_lowkiq.store.cluster_map import ClusterMap
from celery_lowkiq.store.errors import lacks_tls
from celery_lowkiq.store.exchange import KeepingPool, limited

# Sentinels whose errors name each of them once: redis-py's have all arguments of each connection.

#: Text of redis-py for an error of the system during a read.
_OS_ERROR = re.compile(r"\(-?\d+, ['\"](.*)['\"]\)$")
_LOST = (exceptions.ConnectionError, exceptions.TimeoutError)


class NamedSentinels(sentinel.Sentinel):
    """Names the master."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        #: By address, the errors of the sentinels that did not answer the last question.
        self._failures: dict[str, Exception] = {}
        each: Any
        for each in self.sentinels:
            each.sentinel_masters = partial(self._ask, _address(each), each.sentinel_masters)

    def _ask(self, address: str, ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._failures.pop(address, None)
        try:
            return ask(*args, **options)
        except _LOST as error:
            self._failures[address] = error
            raise

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the master. Raises MasterNotFoundError."""
        try:
            return cast("tuple[str, int]", super().discover_master(service_name))  # type: ignore[no-untyped-call]
        except sentinel.MasterNotFoundError:
            raise _not_found(service_name, self.sentinels, self._failures) from None


def _address(client: Any) -> str:
    options = client.connection_pool.connection_kwargs
    return host_port(options["host"], options["port"])


def _not_found(
    name: str, sentinels: Sequence[Any], failures: Mapping[str, Exception]
) -> sentinel.MasterNotFoundError:
    addresses, by_reason = sorted(map(_address, sentinels)), dict[str, list[str]]()
    for address in addresses:
        if (error := failures.get(address)) is not None:
            by_reason.setdefault(_reason(error, address), []).append(address)
    lost = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    text = f"No master found for {name!r}"
    if lost and len(failures) < len(addresses):
        text = f"{text}: the sentinels that answer do not name it, and others do not answer: {lost}"
    elif lost:
        text = f"{text}: no sentinel answers: {lost}"
    return sentinel.MasterNotFoundError(text)


def _reason(error: Exception, address: str) -> str:
    """The text of an error without the address."""
    if lacks_tls(error):
        return "no answer with TLS: has the port any? See ssl in sentinel_kwargs"
    text = str(error).replace(f" from {address}", "").rstrip(". ")
    if (found := _OS_ERROR.search(text)) is not None:
        return found[1]
    return text.rpartition(". ")[2] or type(error).__name__


# Creates Redis clients from connection parameters.

#: Retries after a dropped connection because scripts can be repeated; the caller handles longer outages.
RETRIES = 2
#: RESP2 is parsed about twice as fast as RESP3.
PROTOCOL = 2


class _Master(NamedTuple):
    """A master that sentinels name."""

    sentinels: list[tuple[str, int]]
    name: str
    #: Arguments of the connections to the sentinels.
    options: dict[str, Any]
    #: Number of other sentinels that one must know, or it is passed over.
    least_others: int


class _BlockingSentinelPool(SentinelConnectionPool, KeepingPool):
    """A sentinel's pool that waits for a free connection."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Disconnect all. redis-py 5 passes an argument that its own blocking pool does not accept."""
        redis.BlockingConnectionPool.disconnect(self)


def connect_cluster(parameters: Mapping[str, Any], *, pool_size: int, pool_timeout: float) -> ClusterMap:
    """Return the map of a cluster for the same arguments as :func:`connect`, and ``cluster``: (host, port)
    pairs of some of its nodes. Each master has a pool of at most ``pool_size`` connections.
    """
    options, _ = _split(parameters)
    return ClusterMap(options.pop("cluster"), options, pool_size, pool_timeout)


def connect(parameters: Mapping[str, Any], *, pool_size: int, pool_timeout: float) -> redis.Redis:
    """Return a client for the keyword arguments of a redis-py connection; it connects at first use.

    ``sentinels`` (host, port pairs), ``master_name``, ``sentinel_kwargs`` and ``min_other_sentinels`` select
    a master behind sentinels. The pool has at most ``pool_size`` connections; a caller waits up to
    ``pool_timeout`` s for a free one.
    """
    options, master = _split(parameters)
    options["retry"] = Retry(ExponentialBackoff(cap=0.2, base=0.01), RETRIES)
    if master is None:
        pool: redis.ConnectionPool = KeepingPool(max_connections=pool_size, timeout=pool_timeout, **options)
    else:
        asking = {"retry": Retry(NoBackoff(), 0), **master.options}
        manager = NamedSentinels(master.sentinels, master.least_others, sentinel_kwargs=asking)
        pool = _BlockingSentinelPool(  # type: ignore[no-untyped-call]
            master.name, manager, max_connections=pool_size, timeout=pool_timeout, **options
        )
    return redis.Redis(connection_pool=pool)


def _split(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], _Master | None]:
    """Return the arguments of each connection, and the master, if sentinels are given."""
    options = dict(parameters)
    options["protocol"] = PROTOCOL
    options["parser_class"] = limited(options.get("parser_class", DefaultParser))
    sentinels = options.pop("sentinels", None)
    master_name = options.pop("master_name", None)
    of_sentinels = options.pop("sentinel_kwargs", None) or {}
    least_others = options.pop("min_other_sentinels", None) or 0
    options.pop("decode_responses", None)
    if sentinels is not None:
        # The pool has classes of its own for connections to a master.
        given = options.pop("connection_class", redis.Connection)
        options["ssl"] = options.get("ssl") or issubclass(given, redis.SSLConnection)
        # The timeouts of a master; when a sentinel does not answer, the next one is tried.
        timeouts = {name: value for name, value in options.items() if name.startswith("socket_")}
        return options, _Master(list(sentinels), str(master_name), timeouts | of_sentinels, least_others)
    if "path" in options:
        options.setdefault("connection_class", redis.UnixDomainSocketConnection)
    elif options.pop("ssl", False):
        options.setdefault("connection_class", redis.SSLConnection)
    return options, None
