"""Creates Redis clients from connection parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

#: Retries after a dropped connection, since scripts can be repeated; the caller handles longer outages.
RETRIES = 2
#: RESP2 is parsed about twice as fast as RESP3.
PROTOCOL = 2


class _BlockingSentinelPool(SentinelConnectionPool, redis.BlockingConnectionPool):
    """A sentinel's pool that waits for a free connection."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Disconnect all. redis-py 5 passes an argument that its own blocking pool does not accept."""
        redis.BlockingConnectionPool.disconnect(self)


def connect(parameters: Mapping[str, Any], *, pool_size: int, pool_timeout: float) -> redis.Redis:
    """Return a client for the keyword arguments of a redis-py connection; it connects at first use.

    ``sentinels`` (host, port pairs), ``master_name`` and ``sentinel_kwargs`` select a master behind
    sentinels. The pool has at most ``pool_size`` connections; a caller waits up to ``pool_timeout`` s for a
    free one.
    """
    options = dict(parameters)
    options.update(protocol=PROTOCOL, retry=Retry(ExponentialBackoff(cap=0.2, base=0.01), RETRIES))
    sentinels = options.pop("sentinels", None)
    master_name = options.pop("master_name", None)
    sentinel_kwargs = options.pop("sentinel_kwargs", None)
    options.pop("decode_responses", None)
    if sentinels is None:
        if "path" in options:
            options.setdefault("connection_class", redis.UnixDomainSocketConnection)
        elif options.pop("ssl", False):
            options.setdefault("connection_class", redis.SSLConnection)
        pool: redis.ConnectionPool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
            max_connections=pool_size, timeout=pool_timeout, **options
        )
    else:
        options.pop("connection_class", None)
        manager = Sentinel(list(sentinels), sentinel_kwargs=sentinel_kwargs)  # type: ignore[no-untyped-call]
        pool = _BlockingSentinelPool(  # type: ignore[no-untyped-call]
            master_name, manager, max_connections=pool_size, timeout=pool_timeout, **options
        )
    return redis.Redis(connection_pool=pool)


def apart(client: redis.Redis) -> redis.Redis:
    """Return a client of the same Redis with its own pool, for a long-lived connection; close it."""
    pool = client.connection_pool
    own: redis.ConnectionPool = redis.ConnectionPool(
        connection_class=pool.connection_class, **pool.connection_kwargs
    )
    return redis.Redis(connection_pool=own)
