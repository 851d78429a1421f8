"""Sends scripts and commands, many in one round trip, and turns Redis's errors into ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from redis import exceptions

from celery_lowkiq.rules.errors import (
    ClusterNode,
    LowkiqError,
    NotOwner,
    QueueFull,
    ShardDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

from .access_errors import access_error
from .keys import shard_of_key
from .script import Call, Script

#: Codes that Redis answers with while it cannot serve, though it will again.
UNAVAILABLE = (
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY",
    "NOREPLICAS",
    "MISCONF",
)
#: The same as exceptions: redis-py takes the code off the text of those that it knows.
AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    OSError,
)
#: What only a node of a Redis Cluster answers.
CLUSTER = (exceptions.AskError, exceptions.MovedError, exceptions.ClusterCrossSlotError)
#: What a server says that does not know script flags.
SHEBANG = "near '#'"

#: How often a server may forget a script between loading and running it before that is an error.
LOAD_ROUNDS = 3


class ShardsDiffer(StoreError):
    """A shard holds another number of shards than the script was given."""

    def __init__(self, stored: str) -> None:
        super().__init__(
            f"the queue changes its number of shards just now (a shard says {stored}): call again"
        )
        self.stored = stored


class KeysDiffer(ShardDamaged):
    """Keys of a shard tell of different jobs: one of them was lost. The store repairs that by itself."""


class WrongType(ShardDamaged):
    """A key of a shard is of another type than its own: somebody else has written there."""


def refusal(key: str, error: BaseException) -> StoreError:
    """What an answer of Redis means to a script or command whose first key that is: damage is that of the
    key's shard.
    """
    text = str(error)
    shard = shard_of_key(key)
    if shard is not None and text.startswith("DAMAGED"):
        key = text.partition(" ")[2]
        return KeysDiffer(shard.queue, shard.index, f"{key} and the keys beside it tell of different jobs")
    if shard is not None and _is_wrong_type(error):
        return WrongType(shard.queue, shard.index, f"Redis refused a command: {text.rstrip('.')}")
    return store_error(error)


def store_error(error: BaseException) -> StoreError:
    """What a redis-py exception means to the rest of the package."""
    if (denied := access_error(error)) is not None:
        return denied
    text = str(error)
    if "OOM command not allowed" in text or isinstance(error, exceptions.OutOfMemoryError):
        return StoreFull(
            "Redis is at its maxmemory: nothing was stored. Raise maxmemory, or let workers drain."
        )
    if isinstance(error, CLUSTER):
        return ClusterNode()
    code, _, rest = text.partition(" ")
    if code == "NOTOWNER":
        return NotOwner(f"the shard has changed hands (its epoch is {rest})")
    if code == "SHARDS":
        return ShardsDiffer(rest)
    if code == "FULL":
        length, _, allowed = rest.partition(" ")
        return QueueFull(
            f"{length} jobs wait in the shard, of {allowed} that the task's max_length allows it: call again "
            "later, serve the queue faster, or let it drop with when_full"
        )
    # Redis 6.2 puts the error of a command within the text of the script's error.
    if isinstance(error, AWAY) or code in UNAVAILABLE or any(f"-{known} " in text for known in UNAVAILABLE):
        return StoreUnavailable(f"Redis is not available: {text or type(error).__name__}")
    return StoreError(f"Redis refused a command: {text}")


class Client:
    """Runs script calls and plain commands on one Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client
        # Redis 7 knows script flags; found out when the first script with flags is loaded.
        self._flags = True

    def calls(self, calls: Sequence[Call]) -> list[Any]:
        """Replies in order, in one round trip; a refused call has its StoreError as reply.

        Raises StoreUnavailable when the outcome of all of them is unknown.
        """
        replies = self._send([self._evalsha(call) for call in calls])
        for _ in range(LOAD_ROUNDS):
            missing = [i for i, reply in enumerate(replies) if self._must_load(reply)]
            if not missing:
                break
            self._load({calls[i].script for i in missing})
            again = self._send([self._evalsha(calls[i]) for i in missing])
            for i, reply in zip(missing, again, strict=True):
                replies[i] = reply
        return [
            refusal(call.keys[0], reply) if isinstance(reply, exceptions.RedisError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def all(self, calls: Sequence[Call]) -> list[Any]:
        """Replies of all calls, in one round trip. Raises the first StoreError among them."""
        return raise_refused(self.calls(calls)) if calls else []

    def call(self, call: Call) -> Any:
        """Reply of one script. Raises StoreError."""
        return self.all([call])[0]

    def commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Replies of plain commands, in one round trip. Raises StoreError."""
        replies = self._send(commands) if commands else []
        return raise_refused(
            [
                refusal(_key(command), reply) if isinstance(reply, exceptions.RedisError) else reply
                for command, reply in zip(commands, replies, strict=True)
            ]
        )

    def on_server(self, commands: Sequence[tuple[Any, ...]]) -> tuple[str, list[Any]]:
        """Replies of plain commands with the ``run_id`` of the Redis process that gave them, in one round
        trip; empty where the server does not tell it. A key of another type has None as reply. Raises
        StoreError.
        """
        info, *replies = self._send([("INFO", "server"), *commands])
        server = "" if isinstance(info, exceptions.RedisError) else str(info.get("run_id", ""))
        return server, _ours([None if _is_wrong_type(reply) else reply for reply in replies])

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
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

    def _evalsha(self, call: Call) -> tuple[Any, ...]:
        return ("EVALSHA", call.script.sha(self._flags), len(call.keys), *call.keys, *call.values)

    def _must_load(self, reply: Any) -> bool:
        """fakeredis caches a script without compiling it, and finds the shebang line when it runs."""
        if self._flags and isinstance(reply, exceptions.ResponseError) and SHEBANG in str(reply):
            self._flags = False
            return True
        return isinstance(reply, exceptions.NoScriptError)

    def _load(self, scripts: set[Script]) -> None:
        for script in scripts:
            (reply,) = self._send([("SCRIPT LOAD", script.text(self._flags))])
            if isinstance(reply, exceptions.ResponseError) and SHEBANG in str(reply) and self._flags:
                self._flags = False
                (reply,) = self._send([("SCRIPT LOAD", script.text(False))])
            if isinstance(reply, exceptions.RedisError):
                raise store_error(reply) from reply


def _key(command: tuple[Any, ...]) -> str:
    """The first key of a plain command; empty for one without arguments."""
    return str(command[1]) if len(command) > 1 else ""


def _is_wrong_type(reply: Any) -> bool:
    return isinstance(reply, exceptions.ResponseError) and "WRONGTYPE" in str(reply)


def _ours(replies: list[Any]) -> list[Any]:
    return raise_refused([store_error(r) if isinstance(r, exceptions.RedisError) else r for r in replies])


def raise_refused(replies: list[Any]) -> list[Any]:
    """The replies, unless one is an error of ours: then that is raised."""
    for reply in replies:
        if isinstance(reply, LowkiqError):
            raise reply
    return replies
