"""Clients of one server: send commands and scripts, and raise errors of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import redis
from redis import exceptions

from celery_lowkiq.rules.errors import ConfigurationError, LowkiqError, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.topology import Kind, ServerInfo, server_info
from celery_lowkiq.store.connect import address_of, apart, is_behind_sentinels, sentinel_master
from celery_lowkiq.store.errors import is_wrong_type, script_error, store_error
from celery_lowkiq.store.exchange import Command, exchange
from celery_lowkiq.store.keys import CLOCK_KEY, queue_key, reports_key, shard_keys, with_prefix
from celery_lowkiq.store.records import reads_replies
from celery_lowkiq.store.script import Script, ScriptCall, library

# Redis client: pipelines script calls and commands, and translates Redis errors to the package's own.

T = TypeVar("T")
K = TypeVar("K")
#: Replies, and apart from them errors, by the keys of what was asked.
Outcomes: TypeAlias = tuple[dict[K, Any], dict[K, StoreError]]
#: Identifies the server to which a SCRIPT LOAD goes.
Server: TypeAlias = tuple[Any, ...]

#: In place of the address of a slot's master.
NO_MASTER = "a slot without a master"

#: Text of the error of a server that does not support script flags.
SHEBANG = "near '#'"
#: Maximum number of attempts to load a script that the server evicts before it runs.
LOAD_ROUNDS = 3


class Asked(NamedTuple):
    """A server that stores shards, with its number of slots on a cluster. ``ask`` sends commands; it returns
    their replies, and the errors of refused ones.
    """

    address: str
    slots: int | None
    ask: Callable[[Mapping[str, Command]], Outcomes[str]]


class Client:
    """Runs script calls and plain commands on one Redis."""

    #: Errors of rights that masters of a cluster have denied a :meth:`reader`, by address.
    denied: Mapping[str, str] = MappingProxyType({})
    #: In front of all keys and channels in Redis. Elsewhere, they have none.
    prefix = ""

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client
        # True if the server supports script flags (Redis 7); cleared when it rejects the first script.
        self._flags = True

    # -- what differs on a cluster

    def close(self) -> None:
        """Close all connections."""
        self.redis.connection_pool.disconnect()

    def address(self) -> str:
        """Return where Redis is, without user and password."""
        return address_of(self.redis)

    def masters(self) -> list[Asked]:
        """Return the servers that store shards. Raises StoreError."""
        return [Asked(self.address(), None, self._ask)]

    def kind(self) -> Kind:
        """Return how the masters are reached."""
        return Kind.SENTINEL if is_behind_sentinels(self.redis) else Kind.SERVER

    def behind_sentinels(self) -> str | None:
        """Return host and port of the master that sentinels have named last; None without any."""
        return sentinel_master(self.redis)

    def refusing_replicas(self) -> list[str]:
        """Return the addresses of a cluster's replicas that refuse user or password. Raises StoreError."""
        return []

    def master_of(self, shard: ShardRef) -> str | None:
        """Return the address of the server that stores a shard; None for a slot without a master."""
        return self.address()

    def master_name(self, shard: ShardRef) -> str:
        """Return the address of a shard's master, or that its slot has none."""
        return self.master_of(shard) or NO_MASTER

    def is_unreachable(self, shard: ShardRef) -> bool:
        """True on a cluster if the master of a shard has not responded lately."""
        return False

    def apart(self) -> redis.Redis:
        """Return a client with its own pool, for a subscription; close it. Raises RedisError when Redis is
        loading because it accepts subscriptions then.
        """
        self.redis.ping()
        return apart(self.redis)

    def wait_less(self) -> None:
        """On a cluster, leave a slot that moves sooner: the caller has other shards to serve."""

    def reader(self) -> Client:
        """Return a client for reads that show what they can: on a cluster, a master that denies a right
        counts as unreachable.
        """
        return self

    def is_lost(self, client: redis.Redis) -> bool:
        """True if nothing may come to a client of :meth:`apart` any more, though it is connected."""
        return False

    def note_lost(self, client: redis.Redis) -> None:
        """On a cluster, have the next client of :meth:`apart` use another master than this one."""

    def slices(self, values: Sequence[T], size: int) -> list[Sequence[T]]:
        """Return shards or queues in parts of at most ``size``, one for each call of a script with repeated
        keys.
        """
        return [values[start : start + size] for start in range(0, len(values), size)]

    def streams(self, shards: Iterable[ShardRef]) -> list[ShardRef]:
        """Return one shard of each replication stream, whose last write confirms those of the others."""
        return list({self.master_of(shard): shard for shard in shards}.values())

    def calls_in_turn(
        self, first: Sequence[ScriptCall], then: Sequence[ScriptCall], others: Sequence[ScriptCall]
    ) -> list[Any]:
        """Run scripts as :meth:`calls` does, those of ``first`` before those of ``then``."""
        return self.calls([*first, *then, *others])

    def check_reachable(self, replies: Iterable[Any]) -> None:
        """Raise the first StoreUnavailable among the replies, unless it is of one of several masters."""
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply

    def unless_unreachable(self, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns; None when it needs an unreachable master, and others respond."""
        try:
            return read()
        except StoreUnavailable as error:
            self.check_reachable([error])
            return None

    # -- scripts and commands

    def calls(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in one round trip; the reply of a refused call is its StoreError.

        Raises StoreUnavailable when the outcome of all calls is unknown.
        """
        if not calls:
            return []
        replies = self._send(list(map(self._evalsha, calls)))
        for reply in replies:
            if isinstance(reply, exceptions.RedisError):
                return self._repeat(calls, replies)
        return replies

    def _repeat(self, calls: Sequence[ScriptCall], replies: list[Any]) -> list[Any]:
        for _ in range(LOAD_ROUNDS):
            missing = [i for i, reply in enumerate(replies) if self._must_load(reply)]
            if not missing:
                break
            refused = self._load([(calls[i].script, replies[i]) for i in missing])
            # A refusal is of one master of a cluster: the replies of the others stand.
            for i in missing:
                replies[i] = refused.get((calls[i].script, self._server_of(replies[i])), replies[i])
            missing = [i for i in missing if self._must_load(replies[i])]
            if not missing:
                continue
            again = self._send([self._evalsha(calls[i]) for i in missing])
            for i, reply in zip(missing, again, strict=True):
                replies[i] = reply
        return [
            self._error(call.keys[0], reply) if isinstance(reply, exceptions.RedisError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in one round trip. Raises the first StoreError among the replies."""
        return raise_refused(self.calls(calls))

    def call(self, call: ScriptCall) -> Any:
        """Run one script. Raises StoreError."""
        return self.all([call])[0]

    def outcomes(self, calls: Mapping[K, ScriptCall]) -> Outcomes[K]:
        """Run scripts in one round trip. Return their replies, and the errors of refused scripts.

        Raises StoreUnavailable when the outcome of all calls is unknown.
        """
        return parted(calls, self.calls(list(calls.values())))

    def each(self, calls: Mapping[K, ScriptCall], kept: type[StoreError] = StoreUnavailable) -> Outcomes[K]:
        """Run scripts in one round trip. Return their replies, and the errors of unreachable masters.

        ``kept``: further errors that are returned. Raises other StoreErrors, and the StoreUnavailable of the
        only server.
        """
        return self.reached(*self.outcomes(calls), kept)

    def each_part(
        self, values: Sequence[K], size: int, call: Callable[[Sequence[K]], ScriptCall]
    ) -> tuple[list[tuple[Sequence[K], Any]], list[K]]:
        """Run a script with repeated keys for shards or queues, in parts of at most ``size``.

        Return the parts with their replies, and the values of unreachable masters. Raises StoreError.
        """
        parts = self.slices(values, size)
        found, lost = self.each({n: call(part) for n, part in enumerate(parts)})
        return [(parts[n], reply) for n, reply in found.items()], [one for n in lost for one in parts[n]]

    def each_command(self, commands: Mapping[K, Command], *, readable: bool = False) -> Outcomes[K]:
        """Run commands in one round trip. See :meth:`each`, and ``readable`` of :meth:`commands`."""
        return self.reached(*parted(commands, self._replies(list(commands.values()), readable)))

    def each_pair(self, commands: Mapping[K, Command], then: Command) -> Outcomes[K]:
        """Run each command with ``then``, which has no key, behind it on the same connection.

        Return both replies of each. See :meth:`each`.
        """
        pairs = {(key, n): one for key, command in commands.items() for n, one in enumerate((command, then))}
        found, errors = self.each_command(pairs)
        lost = {key: error for (key, _), error in errors.items()}
        return {key: (found[key, 0], found[key, 1]) for key in commands if key not in lost}, lost

    def commands(self, commands: Sequence[Command], *, readable: bool = False) -> list[Any]:
        """Run commands in one round trip. Raises StoreError.

        ``readable``: a key of the wrong type is read as None.
        """
        return raise_refused(self._replies(commands, readable))

    def reached(
        self, found: dict[K, Any], errors: dict[K, StoreError], kept: type[StoreError] = StoreUnavailable
    ) -> Outcomes[K]:
        """Return both parts. Raises errors as :meth:`each` does."""
        if errors:
            self.check_reachable(errors.values())
            raise_refused([one for one in errors.values() if not isinstance(one, (StoreUnavailable, kept))])
        return found, errors

    def _replies(self, commands: Sequence[Command], readable: bool) -> list[Any]:
        if not commands:
            return []
        return [
            reply
            if not isinstance(reply, exceptions.RedisError)
            else None
            if readable and is_wrong_type(reply)
            else self._error(str((*command, "")[1]), reply)
            for command, reply in zip(commands, self._send(self._with_prefix(commands)), strict=True)
        ]

    def _error(self, key: str, error: exceptions.RedisError) -> StoreError:
        """Return an error of Redis, for a script or command of this first key, as one of the package."""
        return script_error(key, error)

    def _ask(self, commands: Mapping[str, Command]) -> Outcomes[str]:
        try:
            return parted(commands, answers(self._send(self._with_prefix(list(commands.values())))))
        except StoreError as error:
            return {}, dict.fromkeys(commands, error)

    def _send(self, commands: Sequence[Command]) -> list[Any]:
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

    def _one(self, command: tuple[Any, ...]) -> Any:
        try:
            return self.redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except exceptions.ResponseError as error:
            return error

    def _with_prefix(self, commands: Sequence[Command]) -> Sequence[Command]:
        return [with_prefix(self.prefix, each) for each in commands] if self.prefix else commands

    def _evalsha(self, call: ScriptCall) -> tuple[Any, ...]:
        if self.prefix:
            call = call.with_prefix(self.prefix)
        return ("EVALSHA", call.script.shas[self._flags], len(call.keys), *call.keys, *call.values)

    def _must_load(self, reply: Any) -> bool:
        # fakeredis caches a script without compiling it, and rejects the shebang line only when it runs.
        return self._rejects_flags(reply) or isinstance(reply, exceptions.NoScriptError)

    def _rejects_flags(self, reply: Any) -> bool:
        # Also when another thread has found it out since the script was sent.
        if not (isinstance(reply, exceptions.ResponseError) and SHEBANG in str(reply)):
            return False
        self._flags = False
        return True

    def _load(
        self, missing: Sequence[tuple[Script, Any]]
    ) -> dict[tuple[Script, Server], exceptions.RedisError]:
        """Load scripts in one round trip, given with the replies of servers that do not have them. Return
        what was refused.
        """
        wanted = self._to_load([(script, self._server_of(reply)) for script, reply in missing])
        replies = self._send(
            [("SCRIPT LOAD", script.text(self._flags), *server) for script, server in wanted]
        )
        if any(map(self._rejects_flags, replies)):
            replies = self._send([("SCRIPT LOAD", script.text(False), *server) for script, server in wanted])
        return {
            each: reply
            for each, reply in zip(wanted, replies, strict=True)
            if isinstance(reply, exceptions.RedisError)
        }

    def _to_load(self, missing: Sequence[tuple[Script, Server]]) -> list[tuple[Script, Server]]:
        """Return what is loaded when servers do not have these scripts."""
        return list(dict.fromkeys(missing))

    def _server_of(self, reply: Any) -> Server:
        """Return the key of the server to which a SCRIPT LOAD goes."""
        return ()


def answers(replies: Sequence[Any]) -> list[Any]:
    """Return replies with redis-py's exceptions as StoreErrors."""
    lost = (exceptions.RedisError, OSError)
    return [store_error(reply) if isinstance(reply, lost) else reply for reply in replies]


def parted(keys: Iterable[K], replies: Iterable[Any]) -> Outcomes[K]:
    """Return replies and errors by key."""
    found: dict[K, Any] = {}
    errors: dict[K, StoreError] = {}
    for key, reply in zip(keys, replies, strict=True):
        (errors if isinstance(reply, StoreError) else found)[key] = reply
    return found, errors


def raise_refused(replies: list[Any]) -> list[Any]:
    """Return the replies; raise the first LowkiqError among them."""
    for reply in replies:
        if isinstance(reply, LowkiqError):
            raise reply
    return replies


# Reads information about the Redis server.

#: Maximum number of keys that a check of the URL reads.
MOST_KEYS = 1000


@reads_replies
def read_server(client: Client) -> ServerInfo:
    """Return the server's information with its address, without user and password. Raises StoreError."""
    # On a cluster, a master answers INFO also while it refuses all keys.
    of_key = [("ZREVRANGE", reports_key(), 0, 0)] if client.kind() is Kind.CLUSTER else []
    *_, info = client.commands([*of_key, ("INFO",)])
    address, place = client.address(), client.behind_sentinels()
    return replace(server_info(info), address=f"{address} ({place})" if place else address)


def check_url(client: Client, queues: Sequence[QueueSpec]) -> None:
    """Raise ClusterNode when the server is a node of a cluster without all slots of the queues, and
    SentinelAddress when it stores nothing. Other errors pass.
    """
    keys = [queue_key(queue.name) for queue in queues]
    keys += [shard_keys(shard)["meta"] for queue in queues for shard in queue.shard_refs()]
    for server in client.masters():
        _, errors = server.ask({key: ("HGET", key, "shards") for key in keys[:MOST_KEYS]})
        raise_refused([error for error in errors.values() if isinstance(error, ConfigurationError)])


# Client with a clock that tests can move.
#
# It runs modified copies of the scripts, which read the clock's offset; normal scripts never read that key.

_NOW = "return redis.call('TIME')"


class FakeClockClient(Client):
    """Runs scripts with the time of the test's clock."""

    def calls(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts, with the test's clock. See :meth:`Client.calls`."""
        return super().calls([call._replace(script=_clocked(call.script)) for call in calls])

    def commands(self, commands: Sequence[Command], *, readable: bool = False) -> list[Any]:
        """Run commands; TIME returns the test's clock. See :meth:`Client.commands`."""
        return super().commands(
            [("EVAL", _prelude() + _NOW, 0) if command == ("TIME",) else command for command in commands],
            readable=readable,
        )

    def now(self) -> float:
        """Return the clock's Unix time in s."""
        ((seconds, micros),) = self.commands([("TIME",)])
        return float(seconds) + float(micros) / 1_000_000

    def move(self, seconds: float) -> None:
        """Move the clock by seconds; backwards when negative."""
        self.commands([("INCRBY", CLOCK_KEY, round(seconds * 1_000_000))])

    def empty(self) -> None:
        """Delete all data of the server, and reset the clock."""
        self.commands([("FLUSHALL",)])


@cache
def _prelude() -> str:
    return f"local clock_key = '{CLOCK_KEY}'\n{library('time.test')}"


@cache
def _clocked(script: Script) -> Script:
    return replace(script, body=_prelude() + script.body)
