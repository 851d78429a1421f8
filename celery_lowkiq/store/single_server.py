"""One Redis, reached by its address or by sentinels: sends commands, and raises when it is unreachable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import redis
from redis import exceptions
from redis.sentinel import SentinelConnectionPool

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.text import host_port
from celery_lowkiq.rules.topology import Kind
from celery_lowkiq.store.errors import K, Outcomes, store_error
from celery_lowkiq.store.exchange import Command, exchange
from celery_lowkiq.store.script import Script


def parted(keys: Iterable[K], replies: Iterable[Any]) -> Outcomes[K]:
    """Return replies and errors by key."""
    found: dict[K, Any] = {}
    errors: dict[K, StoreError] = {}
    for key, reply in zip(keys, replies, strict=True):
        (errors if isinstance(reply, StoreError) else found)[key] = reply
    return found, errors


class Asked(NamedTuple):
    """A server that stores shards, with its number of slots on a cluster, and what sends it commands."""

    address: str
    slots: int | None
    send: Callable[[Sequence[Command]], list[Any]]

    def ask(self, commands: Mapping[str, Command]) -> Outcomes[str]:
        """Send commands. Return their replies, and the errors of refused ones."""
        try:
            replies = self.send(list(commands.values()))
        except StoreError as error:
            return {}, dict.fromkeys(commands, error)
        lost = (exceptions.RedisError, OSError)
        return parted(commands, [store_error(one) if isinstance(one, lost) else one for one in replies])


class SingleServer:
    """Sends commands to one Redis. Methods raise StoreError."""

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client
        is_behind_sentinels = isinstance(client.connection_pool, SentinelConnectionPool)
        self.kind: Kind = Kind.SENTINEL if is_behind_sentinels else Kind.SERVER

    def close(self) -> None:
        """Close all connections."""
        self.redis.connection_pool.disconnect()

    def address(self) -> str:
        """Return where Redis is, without user and password."""
        pool: Any = self.redis.connection_pool
        options = pool.connection_kwargs
        location = options.get("path") or host_port(options.get("host", ""), options.get("port", ""))
        return f"{getattr(pool, 'service_name', location)} db {options.get('db') or 0}"

    def behind_sentinels(self) -> str | None:
        """Return host and port of the master that sentinels have named last; None without any, and before."""
        found = getattr(self.redis.connection_pool, "master_address", None)
        return found and host_port(*found)

    def master_of(self, shard: ShardRef) -> str:
        """Return the address of the server that stores a shard."""
        return self.address()

    def masters(self) -> list[Asked]:
        """Return the only server."""
        return [Asked(self.address(), None, self.send)]

    def apart(self) -> redis.Redis:
        """Return a client with its own pool, for a subscription; close it. Raises RedisError, also when Redis
        is loading because it accepts subscriptions then.
        """
        self.redis.ping()
        pool = self.redis.connection_pool
        own: redis.ConnectionPool = redis.ConnectionPool(
            connection_class=pool.connection_class, **pool.connection_kwargs
        )
        return redis.Redis(connection_pool=own)

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip. Return their replies; that of a refused one is its error."""
        try:
            if (replies := exchange(self.redis, commands)) is not None:
                return replies
            if len(commands) == 1:
                return [self._one(commands[0])]
            with self.redis.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)  # type: ignore[no-untyped-call]
                return list(pipe.execute(raise_on_error=False))
        except (exceptions.RedisError, OSError) as error:
            raise store_error(error) from error

    def _one(self, command: Command) -> Any:
        try:
            return self.redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except exceptions.ResponseError as error:
            return error

    def load(self, missing: Iterable[tuple[Script, Any]], flags: bool) -> dict[tuple[Script, Any], Any]:
        """Load scripts, each with its server, in one round trip. Return the replies."""
        wanted = list(dict.fromkeys(missing))
        replies = self.send([("SCRIPT LOAD", script.text(flags)) for script, _ in wanted])
        return dict(zip(wanted, replies, strict=True))
