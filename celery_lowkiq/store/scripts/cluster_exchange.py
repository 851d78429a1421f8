"""Exchanges with several masters of a Redis Cluster at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import redis
from redis import exceptions

from .cluster_map import Address, ClusterMap
from .connect import PROTOCOL
from .exchange import Command, packed, read_reply
from .keeping_pool import KeepingPool, Kept

#: Redis-py's conversions of replies, by command.
_CONVERT: Mapping[str, Any] = redis.Redis(
    connection_pool=redis.ConnectionPool(protocol=PROTOCOL)
).response_callbacks


class _Sent(NamedTuple):
    address: Address
    pool: KeepingPool
    kept: Kept


def exchange_all(cluster: ClusterMap, parts: Mapping[Address, Sequence[Command]]) -> dict[Address, list[Any]]:
    """Send each node its commands, then read all replies; that of a refused command is its error.

    What a node has not answered has the ConnectionError or TimeoutError as its reply; the node may have
    executed it.
    """
    opened: list[_Sent] = []
    replies: dict[Address, list[Any]] = {}
    try:
        # In one order for all threads: none has a connection that another one waits for, while it waits for
        # one of that other's.
        for address in sorted(parts) if len(parts) > 1 else parts:
            try:
                _send(cluster.pool(address), address, parts[address], opened)
            except (exceptions.RedisError, OSError) as error:
                replies[address] = [error] * len(parts[address])
        while opened:
            sent = opened[-1]
            replies[sent.address] = _read(sent, parts[sent.address])
            opened.pop()
        return replies
    finally:
        for sent in opened:
            _give_up(sent)


def _send(pool: KeepingPool, address: Address, commands: Sequence[Command], opened: list[_Sent]) -> None:
    """Send commands over a connection of the pool, and add it to those that are open."""
    kept = pool.take_kept() or pool.take_new()
    opened.append(_Sent(address, pool, kept))
    try:
        kept.connection.send_packed_command(packed(kept.connection, list(map(_words, commands))))
    except (exceptions.RedisError, OSError):
        _give_up(opened.pop())
        raise


def _words(command: Command) -> Command:
    # Redis-py splits them, hiredis does not.
    return (*command[0].split(), *command[1:]) if " " in command[0] else command


def _read(sent: _Sent, commands: Sequence[Command]) -> list[Any]:
    """Read all replies, and give the connection back."""
    found: list[Any] = []
    try:
        for command in commands:
            found.append(_reply(sent, command))
    except (exceptions.RedisError, OSError) as error:
        _give_up(sent)
        found += [error] * (len(commands) - len(found))
    else:
        sent.pool.keep(sent.kept)
    return found


def _reply(sent: _Sent, command: Command) -> Any:
    reply = read_reply(sent.kept.connection)
    if isinstance(reply, exceptions.ResponseError):
        reply.node = sent.address  # type: ignore[attr-defined]
        return reply
    convert = _CONVERT.get(command[0])
    return reply if convert is None else convert(reply)


def _give_up(sent: _Sent) -> None:
    # Replies may be left in the connection.
    sent.kept.connection.disconnect()
    sent.pool.release(sent.kept.connection)
