"""Exchanges with one Redis: commands and replies on kept connections, and the server that they reach."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import redis
from redis import exceptions
from redis.client import Pipeline
from redis.sentinel import SentinelConnectionPool

from celery_lowkiq.rules.basics import is_defined_in
from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.text import host_port
from celery_lowkiq.rules.topology import Kind
from celery_lowkiq.store.errors import K, Outcomes, store_error
from celery_lowkiq.store.script import Script

# Limits of one reply: its bytes, and its time from the first byte to the last.
#
# A socket's own timeout ends with each byte that arrives. So a server or proxy that lies could make a client
# read for ever, or until the memory is full.

#: Maximum bytes of a reply. The longest ones of our scripts have a few MiB: each has a limit of its own.
MAX_BYTES = 64 * 1024 * 1024
#: Maximum s from the first byte of a reply to its last one.
MAX_SECONDS = 30.0


class Meter:
    """Counts what arrives of one reply after its first part. Bytes of the next one, which arrive with its
    end, count for it.
    """

    def __init__(self) -> None:
        #: Set by the reader of a reply: nothing of it has arrived, but for what came with the one before.
        self.is_new: bool = True
        self._left, self._until = MAX_BYTES, 0.0

    def count(self, size: int) -> None:
        """Count bytes that have arrived. Raises InvalidResponse or TimeoutError beyond a limit."""
        if self.is_new:
            # Most replies are one part, of which no time is read.
            self.is_new = False
            self._left, self._until = MAX_BYTES - size, 0.0
            return
        now = time.monotonic()
        if not self._until:
            self._until = now + MAX_SECONDS
        elif now > self._until:
            raise exceptions.TimeoutError(f"a reply did not end within {MAX_SECONDS:.0f} s")
        self._left -= size
        if self._left < 0:
            raise exceptions.InvalidResponse(f"a reply has more than {MAX_BYTES} bytes")


class MeteredSocket:
    """A socket whose received bytes are counted."""

    def __init__(self, socket: Any, meter: Meter) -> None:
        self._socket, self._receive, self._count = socket, socket.recv_into, meter.count

    def recv_into(self, buffer: Any) -> int:
        """Receive bytes, as hiredis's parser does."""
        size: int = self._receive(buffer)
        self._count(size)
        return size

    def recv(self, *args: Any) -> bytes:
        """Receive bytes, as redis-py's own parser does."""
        data: bytes = self._socket.recv(*args)
        self._count(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _Limited:
    """A parser of redis-py that reads no reply beyond the limits."""

    _read_response_of_parser: Any
    _sock: Any
    _buffer: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        self._meter = Meter()
        super().__init__(*args, **options)

    def on_connect(self, connection: Any, *args: Any, **options: Any) -> None:
        """Count what comes over a new connection."""
        parser: Any = super()
        parser.on_connect(connection, *args, **options)
        self._sock = MeteredSocket(self._sock, self._meter)
        if hasattr(self._buffer, "_sock"):
            self._buffer._sock = self._sock

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return a reply. Raises InvalidResponse or TimeoutError."""
        self._meter.is_new = True
        return self._read_response_of_parser(*args, **options)


#: Errors by their codes; redis-py 5.0 gives these to its own client of a cluster only.
OF_CLUSTER: dict[str, type[Exception]] = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "MOVED": exceptions.MovedError,
    "TRYAGAIN": exceptions.TryAgainError,
}


@cache
def limited(parser: Any) -> Any:
    """Return the class of a parser of redis-py whose replies are limited."""
    # Not by super(), which costs as much as the rest.
    own = {
        "_read_response_of_parser": parser.read_response,
        "EXCEPTION_CLASSES": {**parser.EXCEPTION_CLASSES, **OF_CLUSTER},
    }
    return type(f"Limited{parser.__name__}", (_Limited, parser), own)


# A connection pool that keeps connections ready between two exchanges, and lets no thread starve.
#
# To take a connection from redis-py's pool costs as much as the exchange of a script. After a second redis-
# py looks at a kept connection again: whether it is closed, and still one of the master.

#: How long a connection is used before redis-py looks at it again.
KEPT_SECONDS = 1.0
#: Redis-py before 5.3 wants the name of a command for a connection.
NAME = ("EVALSHA",) if tuple(map(int, redis.__version__.split(".")[:2])) < (5, 3) else ()


class NoFreeConnection(exceptions.ConnectionError):
    """Other threads had all connections of a pool for as long as a caller waits; Redis may be reachable."""

    def __init__(self) -> None:
        super().__init__("No connection available.")


class Kept(NamedTuple):
    """A connection of the pool, and until when it may be used (monotonic s)."""

    connection: Any
    until: float


class KeepingPool(redis.BlockingConnectionPool):
    """A pool that keeps connections between exchanges, but none while a thread waits for one.

    Safe to share between threads; a forked process uses no connection of its parent's.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        #: Called when a thread gets a connection that it may have waited for. What it raises, the thread gets
        #: instead.
        self.check: Callable[[], None] = lambda: None
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """Begin without connections. redis-py calls this once in each process that uses the pool."""
        self._idle: deque[Kept] = deque()
        #: One place for each connection that a thread has or that is kept.
        self._places = threading.Semaphore(self.max_connections)
        #: Held by the thread that waits for a place: one that gives a place back gets none before it.
        self._turn = threading.Lock()
        super().reset()  # type: ignore[no-untyped-call]

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Take a connection for one command, after all kept ones were given back. Raises RedisError."""
        self._checkpid()
        self._take_place()
        try:
            self.check()
        except BaseException:
            self._places.release()
            raise
        return super().get_connection(*args, **options)  # type: ignore[no-untyped-call]

    def _take_place(self) -> None:
        began = time.monotonic()
        # The lock takes -1 for no limit.
        if not self._turn.acquire(timeout=-1 if self.timeout is None else self.timeout):
            raise NoFreeConnection
        try:
            # Only now: a thread that keeps a connection from here on sees that this one waits.
            self._release_idle()
            left = None if self.timeout is None else max(0.0, began + self.timeout - time.monotonic())
            if not self._places.acquire(timeout=left):
                raise NoFreeConnection
        finally:
            self._turn.release()

    def release(self, connection: Any) -> None:
        """Give a connection back."""
        super().release(connection)  # type: ignore[no-untyped-call]
        self._places.release()

    def take_kept(self) -> Kept | None:
        """Take a kept connection; None: there is none."""
        if self.pid != os.getpid():
            return None
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:
                break
            if time.monotonic() < kept.until:
                return kept
            self.release(kept.connection)
        return None

    def take_new(self) -> Kept:
        """Take a connection that may be kept afterwards. Raises RedisError."""
        return Kept(self.get_connection(*NAME), time.monotonic() + KEPT_SECONDS)

    def keep(self, kept: Kept) -> None:
        """Keep a connection after an exchange."""
        self._idle.append(kept)
        if self._turn.locked():
            self._release_idle()

    def close_idle(self) -> None:
        """Close the connections that no thread uses."""
        self._release_idle()
        with self.pool.mutex:
            for connection in filter(None, self.pool.queue):
                connection.disconnect()

    def _release_idle(self) -> None:
        # Other threads take kept connections meanwhile.
        with contextlib.suppress(IndexError):
            while self._idle:
                self.release(self._idle.pop().connection)


# The exchange of scripts and replies over a kept connection, without redis-py's layer for commands.

pack_command: Any
metrics: Any
try:
    from hiredis import pack_command
except ImportError:
    pack_command = None
try:
    from redis.observability.providers import get_observability_instance as metrics
except ImportError:
    metrics = None

#: Commands of this many bytes are sent while the next ones are packed: more than 1,000 small jobs.
PART_BYTES = 64 * 1024
#: Commands that are sent often, and whose replies redis-py returns as they are.
UNCHANGED = {"EVALSHA", "HGET", "HINCRBY", "HMGET", "HVALS", "WAIT", "ZCARD", "ZCOUNT", "ZREVRANGE"}
Command = tuple[Any, ...]
_name: Callable[[Command], str] = itemgetter(0)


def exchange(client: redis.Redis, commands: Sequence[Command]) -> list[Any] | None:
    """Send commands in one round trip, and return their replies; that of a refused one is its error.

    As redis-py does, repeats all of them when the connection is lost, and converts the replies. None: nothing
    was sent because something observes redis-py, or the pool is not ours. Raises RedisError.
    """
    pool = client.connection_pool
    if not isinstance(pool, KeepingPool):
        return None
    names = list(map(_name, commands))
    is_usual = UNCHANGED.issuperset(names)
    kept = pool.take_kept()
    if kept is None:
        if _is_observed(client):
            return None
        kept = pool.take_new()
    try:
        replies = _exchange(kept.connection, commands if is_usual else with_words(commands))
    except BaseException:
        pool.release(kept.connection)
        raise
    pool.keep(kept)
    if is_usual:
        return replies
    convert = client.response_callbacks
    return [
        convert[name](reply) if name in convert and not isinstance(reply, exceptions.ResponseError) else reply
        for name, reply in zip(names, replies, strict=True)
    ]


def with_words(commands: Sequence[Command]) -> Sequence[Command]:
    """Split names such as CONFIG GET: redis-py does, hiredis does not."""
    return [(*name.split(), *values) for name, *values in commands]


def transact(client: redis.Redis, commands: Sequence[Command]) -> bool:
    """Execute commands as one transaction, in one round trip over a connection of any pool.

    As redis-py does, repeats it when the connection is lost. Returns False when nothing was sent because
    something observes redis-py. Raises RedisError, also that of the first command that was refused.
    """
    if _is_observed(client):
        return False
    pool: Any = client.connection_pool
    connection = pool.get_connection(*NAME)
    try:
        *queued, done = _exchange(connection, [("MULTI",), *commands, ("EXEC",)])
    finally:
        pool.release(connection)
    for reply in (*queued, *(done if isinstance(done, list) else [done])):
        if isinstance(reply, exceptions.ResponseError):
            raise reply
    return True


def _exchange(connection: Any, commands: Sequence[Command]) -> list[Any]:
    def attempt() -> list[Any]:
        connection.send_packed_command(packed(connection, commands))
        replies = []
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except exceptions.ResponseError as error:
                replies.append(error)
        return replies

    try:
        replies: list[Any] = connection.retry.call_with_retry(attempt, lambda _: connection.disconnect())
    except BaseException:
        # Replies may be left in it.
        connection.disconnect()
        raise
    return replies


def _is_observed(client: redis.Redis) -> bool:
    """True if a tracer sees what redis-py sends, or a connection of another package sends it."""
    return not (
        client.connection_pool.connection_class.__module__.startswith("redis.")
        and is_defined_in(client.execute_command, redis.client)
        and is_defined_in(Pipeline.execute, redis.client)
        and (metrics is None or metrics().get_provider_manager() is None)
    )


def packed(connection: Any, commands: Sequence[Command]) -> Iterator[bytes]:
    """Yield what is sent: small commands together."""
    part: list[bytes] = []
    size = 0
    for command in commands:
        part += connection.pack_command(*command) if pack_command is None else [pack_command(command)]
        size += len(part[-1])
        if size >= PART_BYTES:
            yield b"".join(part)
            part, size = [], 0
    if part:
        yield b"".join(part)


# One Redis, reached by its address or by sentinels.


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
