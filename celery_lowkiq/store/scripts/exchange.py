"""The exchange of scripts and replies over a kept connection, without redis-py's layer for commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis
from redis import exceptions
from redis.client import Pipeline

from celery_lowkiq.rules.functions import is_defined_in

from .keeping_pool import NAME, KeepingPool

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
#: Commands that are sent often: scripts, confirmations of pushes, and reads of many shards. redis-py changes
#: the replies of those in CHANGED.
SENT_HERE = {"EVALSHA", "HGET", "HINCRBY", "HMGET", "TIME", "WAIT", "ZCARD", "ZCOUNT", "ZMSCORE"}
CHANGED = {"TIME", "ZMSCORE"}
Command = tuple[Any, ...]


def exchange(client: redis.Redis, commands: Sequence[Command]) -> list[Any] | None:
    """Send commands in one round trip, and return their replies; that of a refused one is its error.

    As redis-py does, repeats all of them when the connection is lost. None: nothing was sent, since something
    observes redis-py, or the commands are not all SENT_HERE. Raises RedisError.
    """
    pool = client.connection_pool
    names = {command[0] for command in commands}
    if not isinstance(pool, KeepingPool) or not names <= SENT_HERE:
        return None
    kept = pool.take_kept()
    if kept is None:
        if _is_observed(client):
            return None
        kept = pool.take_new()
    try:
        replies = _exchange(kept.connection, commands)
    except BaseException:
        pool.release(kept.connection)
        raise
    pool.keep(kept)
    if names & CHANGED:
        return [_changed(client, *each) for each in zip(commands, replies, strict=True)]
    return replies


def _changed(client: redis.Redis, command: Command, reply: Any) -> Any:
    """A reply as redis-py returns it."""
    if command[0] not in CHANGED or isinstance(reply, exceptions.ResponseError):
        return reply
    return client.response_callbacks[command[0]](reply)


def transact(client: redis.Redis, commands: Sequence[Command]) -> bool:
    """Execute commands as one transaction, in one round trip over a connection of any pool.

    As redis-py does, repeats it when the connection is lost. Returns False when nothing was sent, since
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
        return [_reply(connection) for _ in commands]

    try:
        replies: list[Any] = connection.retry.call_with_retry(attempt, lambda _: connection.disconnect())
    except BaseException:
        # Replies may be left in it.
        connection.disconnect()
        raise
    return replies


def _is_observed(client: redis.Redis) -> bool:
    """Whether a tracer sees what redis-py sends, or a connection of another package sends it."""
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


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except exceptions.ResponseError as error:
        return error
