"""Exchanges with several masters of a Redis Cluster at the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import redis
from redis import exceptions

from .cluster_map import ClusterMap
from .cluster_outages import LOGIN, RIGHTS, Address, Name, Outages, text_of
from .cluster_replies import LOST, may_follow, refusal
from .connect import PROTOCOL
from .exchange import Command, packed
from .keeping_pool import KeepingPool, Kept
from .script import sha_of

#: Redis-py's conversions of replies, by command.
_CONVERT: Mapping[str, Any] = redis.Redis(
    connection_pool=redis.ConnectionPool(protocol=PROTOCOL)
).response_callbacks

#: Seconds within which a master answers that is as good as any other one.
NEAR = 0.05
#: Number of masters that answer later, after which no further one is asked.
MOST_FAR = 3


class _Sent(NamedTuple):
    address: Address
    pool: KeepingPool
    kept: Kept
    at: float
    is_new: bool


def exchange_one(cluster: ClusterMap, address: Address, commands: Sequence[Command]) -> list[Any]:
    """Send a node its commands, and read all replies; that of a refused command is its error.

    What the node has not answered has the ConnectionError or TimeoutError as its reply; the node may have
    executed it.
    """
    now = time.monotonic()
    try:
        sent = _send(cluster, address, commands, now)
    except (exceptions.RedisError, OSError) as error:
        return _unanswered(cluster, address, error, commands, now)
    return _read(cluster, sent, commands)


def exchange_all(cluster: ClusterMap, parts: Mapping[Address, Sequence[Command]]) -> dict[Address, list[Any]]:
    """Send each node its commands, then read all replies. See :func:`exchange_one`."""
    opened: list[_Sent] = []
    replies: dict[Address, list[Any]] = {}
    now = time.monotonic()
    try:
        # In one order for all threads: none has a connection that another one waits for, while it waits for
        # one of that other's.
        for address in sorted(parts):
            try:
                opened.append(_send(cluster, address, parts[address], now))
            except (exceptions.RedisError, OSError) as error:
                replies[address] = _unanswered(cluster, address, error, parts[address], now)
        is_late = False
        while opened:
            sent = opened.pop()
            found = replies[sent.address] = _read(cluster, sent, parts[sent.address], is_late)
            # The others have had as much time as this one.
            is_late = is_late or isinstance(found[-1], exceptions.TimeoutError)
        return replies
    finally:
        for sent in opened:
            _give_up(sent)


def load_scripts(cluster: ClusterMap, commands: Sequence[Command], logs_rights: bool) -> list[Any]:
    """Send SCRIPT LOADs, whose last words are nodes; of each node, the first script is one that it lacks. The
    reply of a node that is away is None: the commands that need the scripts are answered one by one.
    """
    parts: dict[Address, list[Command]] = {}
    for *words, node in commands:
        parts.setdefault(node, []).append(tuple(words))
    told = exchange_all(cluster, parts)
    for node, (first, *_) in told.items():
        if (refused := refusal(first)) and (logs_rights or refused.what != RIGHTS):
            _, text = parts[node][0]
            # Ends when another process has loaded this script. The node may have some of the others.
            cluster.outages.refused(node, ("EVALSHA", sha_of(text)), refused)
    replies = {node: iter(found) for node, found in told.items()}
    found = [next(replies[command[-1]]) for command in commands]
    return [None if isinstance(reply, LOST) else reply for reply in found]


def find_near(cluster: ClusterMap, last: Address | None) -> Address:
    """Return the first master that answers within NEAR, or the fastest of MOST_FAR. ``last``: asked last.

    Raises RedisError, OSError.
    """
    error: Any = exceptions.ConnectionError("no master has a slot")
    far: dict[Address, float] = {}
    for address in sorted(cluster.masters(), key=lambda each: each == last):
        seconds, error = _ping(cluster, address)
        if error is None and seconds > NEAR:
            # Not with the time to connect.
            seconds, error = _ping(cluster, address)
        if error is None:
            if seconds <= NEAR:
                return address
            far[address] = seconds
            if len(far) == MOST_FAR:
                break
    if far:
        return min(far, key=far.__getitem__)
    cluster.refresh()
    raise error


def _ping(cluster: ClusterMap, address: Address) -> tuple[float, Any]:
    """Return how many seconds a node took to answer, and its error or None."""
    began = time.monotonic()
    (reply,) = exchange_one(cluster, address, [("PING",)])
    error = reply if isinstance(reply, (exceptions.RedisError, OSError)) else None
    return time.monotonic() - began, error


def _unanswered(
    cluster: ClusterMap, address: Address, error: Any, commands: Sequence[Command], sent_at: float
) -> list[Any]:
    error.node, error.sent_at = address, sent_at
    if isinstance(error, exceptions.TimeoutError):
        # At once, so that it costs no further timeout: this thread may ask other nodes yet, and others wait
        # for a connection to this one.
        cluster.outages.lost(address, error, sent_at, cluster.slots())
    return [error] * len(commands)


def _send(cluster: ClusterMap, address: Address, commands: Sequence[Command], now: float) -> _Sent:
    """Send commands over a connection of the pool. ``now``: monotonic time."""
    cluster.check_silent(address)
    pool = cluster.pool(address)
    if any(" " in command[0] for command in commands):
        # Redis-py splits such names, hiredis does not.
        commands = [(*name.split(), *values) for name, *values in commands]
    kept = pool.take_kept()
    sent = _Sent(address, pool, kept or pool.take_new(), now, is_new=kept is None)
    try:
        sent.kept.connection.send_packed_command(packed(sent.kept.connection, commands))
    except BaseException:
        _give_up(sent)
        raise
    return sent


def _read(cluster: ClusterMap, sent: _Sent, commands: Sequence[Command], is_late: bool = False) -> list[Any]:
    """Read all replies, and give the connection back. ``is_late``: without waiting for the first one."""
    found: list[Any] = []
    read = sent.kept.connection.read_response
    try:
        if is_late and not sent.kept.connection.can_read(timeout=0):
            raise exceptions.TimeoutError(f"Timeout reading from {text_of(sent.address)}")
        for command in commands:
            try:
                reply = read()
            except exceptions.ResponseError as error:
                error.node, error.sent_at = sent.address, sent.at  # type: ignore[attr-defined]
                found.append(error)
                continue
            convert = _CONVERT.get(command[0])
            found.append(reply if convert is None else convert(reply))
    except BaseException as error:
        _give_up(sent)
        if not isinstance(error, Exception):
            raise
        if not isinstance(error, (exceptions.RedisError, OSError)):
            # An unreadable reply fails the commands of its own node only.
            error = exceptions.InvalidResponse(f"a reply cannot be read: {error!r:.200}")
        found += _unanswered(cluster, sent.address, error, commands[len(found) :], sent.at)
    else:
        sent.pool.keep(sent.kept)
        _note_answers(cluster.outages, sent, commands, found)
    return found


def _note_answers(outages: Outages, sent: _Sent, commands: Sequence[Command], replies: Sequence[Any]) -> None:
    # A node that has just started refuses all for a second.
    if outages.away and not all(map(may_follow, replies)):
        outages.answered(sent.address, sent.at)
    for address, what in list(outages.refusing) if outages.refusing else ():
        if address != sent.address:
            continue
        if what == LOGIN:
            # Connections from before a change of the password stay logged in.
            executed = {(LOGIN,)} if sent.is_new else set()
        else:
            pairs = zip(commands, replies, strict=True)
            executed = {name_of(one) for one, reply in pairs if not isinstance(reply, exceptions.RedisError)}
        for name in executed:
            outages.accepted(address, what, name, sent.at)


def name_of(command: Command) -> Name:
    """Return the name of a command; that of EVALSHA has the hash of its script."""
    return tuple(command[: 2 if command[0] == "EVALSHA" else 1])


def _give_up(sent: _Sent) -> None:
    # Replies may be left in the connection.
    sent.kept.connection.disconnect()
    sent.pool.release(sent.kept.connection)
