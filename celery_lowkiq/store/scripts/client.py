"""Redis client: pipelines script calls and commands, and translates Redis errors to the package's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import redis
from redis import exceptions

from celery_lowkiq.rules.errors import (
    AccessDenied,
    ClusterNode,
    LoginRefused,
    LowkiqError,
    NotOwner,
    QueueFull,
    ShardDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.topology import Kind

from .connect import address_of, apart, is_behind_sentinels
from .exchange import exchange
from .keys import shard_of_key
from .script import Script, ScriptCall
from .steps import Pause, Send, Step, Steps, execute

T = TypeVar("T")

#: Codes of errors that end without a change by the caller.
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
#: The same as exceptions: redis-py removes the code from the text of errors that it knows.
AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    OSError,
)
#: Errors that only a node of a Redis Cluster returns.
CLUSTER = (exceptions.AskError, exceptions.MovedError, exceptions.ClusterCrossSlotError)
#: Their codes, with which their texts begin.
CLUSTER_TEXTS = ("MOVED ", "ASK ", "CROSSSLOT ")
#: Text of the error of a server that does not support script flags.
SHEBANG = "near '#'"
#: Texts that replace the code NOPERM in the error of a script: in Redis 7 and Valkey, and in Redis 6.2.
SCRIPT_NOPERM = ("ACL failure in script", "The user executing the script can't")
#: The settings that have the password; messages never show its value.
URL = "lowkiq_url (broker_url, where lowkiq_url is not set)"
#: Maximum number of attempts to load a script that the server evicts before it runs.
LOAD_ROUNDS = 3


class ShardCountDiffers(StoreError):
    """A shard stores another number of shards than the script's argument."""

    def __init__(self, stored: str) -> None:
        super().__init__(f"the queue is changing its number of shards (a shard has {stored}): call again")
        self.stored = stored


class InconsistentKeys(ShardDamaged):
    """Keys of a shard disagree, since one of them was lost. The store repairs this automatically."""


class WrongType(ShardDamaged):
    """A key of a shard has the wrong type: another program wrote it."""


def script_error(key: str, error: BaseException) -> StoreError:
    """Translate an error of a script or command whose first key is ``key``; damage is of the key's shard."""
    text = str(error)
    shard = shard_of_key(key)
    if shard is not None and text.startswith("DAMAGED"):
        key = text.partition(" ")[2]
        return InconsistentKeys(
            shard.queue, shard.index, f"{key} and the keys beside it disagree about its jobs"
        )
    if shard is not None and _is_wrong_type(error):
        return WrongType(shard.queue, shard.index, f"Redis refused a command: {text.rstrip('.')}")
    return store_error(error)


def store_error(error: BaseException) -> StoreError:
    """Translate a redis-py exception."""
    text = str(error)
    if (denied := _access_error(error, text)) is not None:
        return denied
    if "OOM command not allowed" in text or isinstance(error, exceptions.OutOfMemoryError):
        return StoreFull(
            "Redis is at its maxmemory: nothing was stored. Raise maxmemory, or let workers drain."
        )
    # redis-py 5.0 raises a plain ResponseError for these, unless its client is one of a cluster.
    if isinstance(error, CLUSTER) or text.startswith(CLUSTER_TEXTS):
        return ClusterNode()
    code, _, rest = text.partition(" ")
    refused = _refused(code, rest)
    if refused is not None:
        return refused
    # Redis 6.2 puts the error of a command within the text of the script's error.
    if isinstance(error, AWAY) or code in UNAVAILABLE or any(f"-{known} " in text for known in UNAVAILABLE):
        return StoreUnavailable(f"Redis is not available: {text or type(error).__name__}")
    return StoreError(f"Redis refused a command: {text}")


def _refused(code: str, rest: str) -> StoreError | None:
    if code == "NOTOWNER":
        return NotOwner(f"another node owns the shard (its epoch is {rest})")
    if code == "SHARDS":
        return ShardCountDiffers(rest)
    if code == "FORMAT":
        stored, _, reads = rest.partition(" ")
        return StoreError(
            f"the shard is stored in format {stored}, this version reads {reads}: "
            "use the version that wrote it"
        )
    if code == "FULL":
        length, allowed, *held = rest.split(" ", 2)
        if held:
            return QueueFull(
                f"{length} payloads wait behind a dead one of id {held[0]!r}, and hold_max allows {allowed}: "
                "requeue or edit the dead payload, or let the id go on"
            )
        return QueueFull(
            f"{length} jobs wait in the shard, and the task's max_length allows {allowed}: call again later, "
            "serve the queue faster, or let it drop with when_full"
        )
    return None


def _access_error(error: BaseException, text: str) -> StoreError | None:
    if isinstance(error, exceptions.AuthenticationError):
        if "Authentication required" in text:
            return LoginRefused(f"Redis asks for a password (NOAUTH): add it to {URL}")
        if "without any password" in text or "no password is set" in text:
            advice = f"set it in Redis, or remove it from {URL}"
            return LoginRefused(f"Redis has no password, but received one (AUTH): {advice}")
        return LoginRefused(f"Redis refuses user or password (WRONGPASS): correct them in {URL}, or in Redis")
    if isinstance(error, exceptions.NoPermissionError) or any(part in text for part in SCRIPT_NOPERM):
        return AccessDenied(
            f"Redis does not permit this (NOPERM): {text.rstrip('. ')}. Give its user the rights that "
            "docs/operations.md lists"
        )
    return None


class Asked(NamedTuple):
    """A server that stores shards. ``slots``: how many it has; None without a cluster."""

    address: str
    slots: int | None
    #: Sends it commands, and returns the replies; that of a refused command is its StoreError.
    ask: Callable[[Sequence[tuple[Any, ...]]], list[Any]]


class Client:
    """Runs script calls and plain commands on one Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client
        # Whether the server supports script flags (Redis 7); cleared when it rejects the first script.
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
        return [Asked(self.address(), None, self._answers)]

    def kind(self) -> Kind:
        """Return how the masters are reached."""
        return Kind.SENTINEL if is_behind_sentinels(self.redis) else Kind.SERVER

    def master_of(self, shard: ShardRef) -> str | None:
        """Return the address of the server that stores a shard; None for a slot without a master."""
        return self.address()

    def apart(self) -> redis.Redis:
        """Return a client with its own pool, for a subscription; close it. Raises RedisError when Redis is
        loading, since it accepts subscriptions then.
        """
        self.redis.ping()
        return apart(self.redis)

    def wait_less(self) -> None:
        """On a cluster, leave a slot that moves sooner: the caller has other shards to serve."""

    def is_lost(self, client: redis.Redis) -> bool:
        """Whether nothing may come to a client of :meth:`apart` any more, though it is connected."""
        return False

    def slices(self, values: Sequence[T], size: int) -> list[Sequence[T]]:
        """Return shards or queues in parts of at most ``size``, one for each call of a script with repeated
        keys.
        """
        return [values[start : start + size] for start in range(0, len(values), size)]

    def streams(self, shards: Iterable[ShardRef]) -> list[ShardRef]:
        """Return one shard of each replication stream, whose last write confirms those of the others."""
        return list(shards)[-1:]

    def calls_in_turn(self, first: Sequence[ScriptCall], then: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts as :meth:`calls` does, those of ``first`` before the others."""
        return self.calls([*first, *then])

    def answers(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in one round trip. Raises the first StoreError among the replies.

        On a cluster, the StoreUnavailable of a master that is away stays a reply.
        """
        return self.all(calls)

    def check_away(self, replies: Iterable[Any]) -> None:
        """Raise the first StoreUnavailable among the replies; none on a cluster, as it is of one master."""
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply

    # -- scripts and commands

    def execute(self, steps: Steps[T]) -> T:
        """Execute a procedure, blocking this thread. Raises what the procedure raises."""
        return execute(steps, self.act)

    def calls(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in one round trip; the reply of a refused call is its StoreError.

        Raises StoreUnavailable when the outcome of all calls is unknown.
        """
        return self.execute(self.call_steps(calls))

    def call_steps(self, calls: Sequence[ScriptCall]) -> Steps[list[Any]]:
        """Steps of :meth:`calls`."""
        replies = yield Send([self._evalsha(call) for call in calls])
        for reply in replies:
            if isinstance(reply, exceptions.RedisError):
                return (yield from self._repeat_steps(calls, replies))
        return replies  # type: ignore[no-any-return]

    def _repeat_steps(self, calls: Sequence[ScriptCall], replies: list[Any]) -> Steps[list[Any]]:
        for _ in range(LOAD_ROUNDS):
            missing = [i for i, reply in enumerate(replies) if self._must_load(reply)]
            if not missing:
                break
            yield from self._load_steps([(calls[i].script, replies[i]) for i in missing])
            again = yield Send([self._evalsha(calls[i]) for i in missing])
            for i, reply in zip(missing, again, strict=True):
                replies[i] = reply
        return [
            script_error(call.keys[0], reply) if isinstance(reply, exceptions.RedisError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in one round trip. Raises the first StoreError among the replies."""
        return raise_refused(self.calls(calls)) if calls else []

    def call(self, call: ScriptCall) -> Any:
        """Run one script. Raises StoreError."""
        return self.all([call])[0]

    def commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run commands in one round trip. Raises StoreError."""
        return self.execute(self.command_steps(commands)) if commands else []

    def command_steps(self, commands: Sequence[tuple[Any, ...]]) -> Steps[list[Any]]:
        """Steps of :meth:`commands`."""
        return raise_refused((yield from self.answer_steps(commands)))

    def answer_steps(self, commands: Sequence[tuple[Any, ...]]) -> Steps[list[Any]]:
        """Steps that run commands in one round trip. Raise StoreError.

        On a cluster, the StoreUnavailable of a master that is away stays a reply.
        """
        replies = yield Send(commands)
        answers = [
            script_error(_key(command), reply) if isinstance(reply, exceptions.RedisError) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]
        return self.but_away(answers)

    def but_away(self, replies: list[Any]) -> list[Any]:
        """Return the replies; raise the first LowkiqError among them but, on a cluster, StoreUnavailable."""
        self.check_away(replies)
        raise_refused([reply for reply in replies if not isinstance(reply, StoreUnavailable)])
        return replies

    def readable(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run commands in one round trip; None for a key of the wrong type. Raises StoreError."""
        return raise_refused(self.readable_here(commands))

    def readable_here(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """As :meth:`readable`. On a cluster, the StoreUnavailable of a master that is away stays a reply."""
        found: list[Any] = [None if _is_wrong_type(reply) else reply for reply in self._send(commands)]
        return self.but_away([store_error(e) if isinstance(e, exceptions.RedisError) else e for e in found])

    def _answers(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            return answers(self._send(commands))
        except StoreError as error:
            return [error] * len(commands)

    def act(self, step: Step) -> Any:
        """Do one step of a procedure. Raises StoreError."""
        if isinstance(step, Send):
            return self._send(step.commands)
        if isinstance(step, Pause):
            return threading.Event().wait(step.seconds)
        return step.function()

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
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

    def _evalsha(self, call: ScriptCall) -> tuple[Any, ...]:
        return ("EVALSHA", call.script.sha(self._flags), len(call.keys), *call.keys, *call.values)

    def _must_load(self, reply: Any) -> bool:
        # fakeredis caches a script without compiling it, and rejects the shebang line only when it runs.
        return self._rejects_flags(reply) or isinstance(reply, exceptions.NoScriptError)

    def _rejects_flags(self, reply: Any) -> bool:
        # Also when another thread has found it out since the script was sent.
        if not (isinstance(reply, exceptions.ResponseError) and SHEBANG in str(reply)):
            return False
        self._flags = False
        return True

    def _load_steps(self, missing: Sequence[tuple[Script, Any]]) -> Steps[None]:
        """Load scripts, given with the replies of servers that do not have them."""
        for script, server in dict.fromkeys((script, self._server_of(reply)) for script, reply in missing):
            (reply,) = yield Send([("SCRIPT LOAD", script.text(self._flags), *server)])
            if self._rejects_flags(reply):
                (reply,) = yield Send([("SCRIPT LOAD", script.text(False), *server)])
            if isinstance(reply, exceptions.RedisError):
                raise store_error(reply) from reply

    def _server_of(self, reply: Any) -> tuple[Any, ...]:
        """Return what tells one of several servers in a SCRIPT LOAD."""
        return ()


def answers(replies: Sequence[Any]) -> list[Any]:
    """Return replies with redis-py's exceptions as StoreErrors."""
    lost = (exceptions.RedisError, OSError)
    return [store_error(reply) if isinstance(reply, lost) else reply for reply in replies]


def _key(command: tuple[Any, ...]) -> str:
    return str(command[1]) if len(command) > 1 else ""


def _is_wrong_type(reply: Any) -> bool:
    return isinstance(reply, exceptions.ResponseError) and "WRONGTYPE" in str(reply)


def raise_refused(replies: list[Any]) -> list[Any]:
    """Return the replies; raise the first LowkiqError among them."""
    for reply in replies:
        if isinstance(reply, LowkiqError):
            raise reply
    return replies
