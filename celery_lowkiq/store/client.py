"""Client of the store's servers: runs scripts and commands where their keys are, and translates errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from redis import exceptions

from celery_lowkiq.rules.errors import (
    AccessDenied,
    ConfigurationError,
    LowkiqError,
    MasterDenies,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.topology import ServerInfo, server_info
from celery_lowkiq.store.cluster_client import ClusterClient
from celery_lowkiq.store.errors import K, Outcomes, is_wrong_type, script_error
from celery_lowkiq.store.exchange import Command, SingleServer, parted
from celery_lowkiq.store.keys import CLOCK_KEY, queue_key, reports_key, shard_keys, with_prefix
from celery_lowkiq.store.records import reads_replies
from celery_lowkiq.store.script import Script, ScriptCall, library

# Redis client: pipelines script calls and commands, and translates Redis errors to the package's own.

T = TypeVar("T")
#: Text of the error of a server that does not support script flags.
SHEBANG = "near '#'"
#: Maximum number of attempts to load a script that the server evicts before it runs.
LOAD_ROUNDS = 3


class Client:
    """Runs script calls and plain commands where their keys are: on one server, or on the masters of a
    cluster.

    On a cluster, a master may be unreachable while others respond: methods for several keys return its errors
    apart from the replies. On one server, they raise.
    """

    #: In front of all keys and channels in Redis. Elsewhere, they have none.
    prefix = ""

    def __init__(self, servers: SingleServer | ClusterClient) -> None:
        self.servers = servers
        #: None: there is one server only.
        self.cluster: ClusterClient | None = servers if isinstance(servers, ClusterClient) else None
        #: Errors of rights that masters of a cluster have denied, by address.
        self.denied: dict[str, str] = {}
        self._is_reader = False
        # True if the server supports script flags (Redis 7); cleared when it rejects the first script.
        self._flags = True

    def reader(self) -> Client:
        """Return a client for reads that show what they can: on a cluster, a master that denies a right
        counts as unreachable, and is named in ``denied``.
        """
        found = copy(self)
        found._is_reader, found.denied = True, {}
        return found

    def slices(self, values: Sequence[T], size: int) -> list[Sequence[T]]:
        """Return shards or queues in parts of at most ``size``, one for each call of a script with repeated
        keys. On a cluster, each is a part because it has a slot of its own.
        """
        step = size if self.cluster is None else 1
        return [values[start : start + step] for start in range(0, len(values), step)]

    def streams(self, shards: Iterable[ShardRef]) -> list[ShardRef]:
        """Return one shard of each replication stream, whose last write confirms those of the others."""
        return list({self.servers.master_of(shard): shard for shard in shards}.values())

    def check_reachable(self, replies: Iterable[Any]) -> None:
        """Raise the first StoreUnavailable among the replies, unless it is of one of several masters."""
        for reply in replies:
            if isinstance(reply, StoreUnavailable) and self.cluster is None:
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
        replies = self.servers.send(list(map(self._evalsha, calls)))
        for reply in replies:
            if isinstance(reply, exceptions.RedisError):
                return self._repeat(calls, replies)
        return replies

    def _repeat(self, calls: Sequence[ScriptCall], replies: list[Any]) -> list[Any]:
        for _ in range(LOAD_ROUNDS):
            missing = {
                i: (calls[i].script, getattr(reply, "node", None))
                for i, reply in enumerate(replies)
                if self._must_load(reply)
            }
            if not missing:
                break
            loaded = self._load(list(missing.values()))
            # A refusal is of one master of a cluster: the replies of the others stand.
            refused = {
                i: loaded[each]
                for i, each in missing.items()
                if isinstance(loaded.get(each), exceptions.RedisError)
            }
            left = [i for i in missing if i not in refused]
            again = self.servers.send([self._evalsha(calls[i]) for i in left]) if left else []
            for i, reply in (*refused.items(), *zip(left, again, strict=True)):
                replies[i] = reply
        return [
            self._error(call.keys[0], reply) if isinstance(reply, exceptions.RedisError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _load(self, missing: Sequence[tuple[Script, Any]]) -> dict[tuple[Script, Any], Any]:
        """Load scripts, each with the node of a cluster that does not have it. Return the replies."""
        loaded = self.servers.load(missing, self._flags)
        if any(map(self._rejects_flags, loaded.values())):
            loaded = self.servers.load(missing, flags=False)
        return loaded

    def calls_in_turn(
        self, first: Sequence[ScriptCall], then: Sequence[ScriptCall], others: Sequence[ScriptCall]
    ) -> list[Any]:
        """Run scripts as :meth:`calls` does, those of ``first`` before those of ``then``.

        On a cluster, this takes two round trips because masters execute what is sent together in any order.
        When one of ``first`` may not have been executed, its StoreUnavailable answers those of ``then``.
        ``others`` are sent with the first round trip; none has the slot of one of ``then``.
        """
        if self.cluster is None or not first:
            return self.calls([*first, *then, *others])
        replies = self.calls([*first, *others])
        before, beside = replies[: len(first)], replies[len(first) :]
        for reply in before:
            if isinstance(reply, StoreUnavailable):
                return [*before, *(reply for _ in then), *beside]
        return [*before, *self.calls(then), *beside]

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
        replies = self.servers.send(self._with_prefix(commands))
        for n, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            if isinstance(reply, exceptions.RedisError):
                unread = readable and is_wrong_type(reply)
                replies[n] = None if unread else self._error(str((*command, "")[1]), reply)
        return replies

    def _error(self, key: str, error: exceptions.RedisError) -> StoreError:
        """Return an error of Redis, for a script or command of this first key, as one of the package.

        A worker's shards wait at a master that denies its user a right: the error is a StoreUnavailable.
        So it is for a :meth:`reader`.
        """
        found, cluster = script_error(key, error), self.cluster
        if cluster is None or not (
            isinstance(found, AccessDenied) and (cluster.waits_less or self._is_reader)
        ):
            return found
        self.denied[found.master or ""] = str(found)
        return MasterDenies(str(found))

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
    of_key = [] if client.cluster is None else [("ZREVRANGE", reports_key(), 0, 0)]
    *_, info = client.commands([*of_key, ("INFO",)])
    address, place = client.servers.address(), client.servers.behind_sentinels()
    return replace(server_info(info), address=f"{address} ({place})" if place else address)


def check_url(client: Client, queues: Sequence[QueueSpec]) -> None:
    """Raise ClusterNode when the server is a node of a cluster without all slots of the queues, and
    SentinelAddress when it stores nothing. Other errors pass.
    """
    keys = [queue_key(queue.name) for queue in queues]
    keys += [shard_keys(shard)["meta"] for queue in queues for shard in queue.shard_refs()]
    commands = {key: ("HGET", client.prefix + key, "shards") for key in keys[:MOST_KEYS]}
    for server in client.servers.masters():
        _, errors = server.ask(commands)
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
