"""Errors of Redis as errors of the package."""

from __future__ import annotations

import re
from typing import Any, TypeAlias, TypeVar

from redis import exceptions

from celery_lowkiq.rules.errors import (
    AccessDenied,
    ClusterDown,
    ClusterNode,
    LoginRefused,
    NotOwner,
    QueueFull,
    SentinelAddress,
    ShardDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    other_format,
)
from celery_lowkiq.rules.text import host_port
from celery_lowkiq.rules.topology import FULL
from celery_lowkiq.store.keys import shard_of_key

# Errors of Redis, as errors of the package.

#: Characters that are read of an error: what answers in place of Redis may send any number of them.
MAX_TEXT = 1000
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
UNREACHABLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    # The bytes are no reply: redis-py closes the connection, and how the request ended is as unknown as when
    # it is lost.
    exceptions.InvalidResponse,
    # The server forgets scripts as fast as they are loaded, as while it is flushed: none of them has run.
    exceptions.NoScriptError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    OSError,
)
#: Errors that only a node of a Redis Cluster returns.
CLUSTER = (exceptions.AskError, exceptions.MovedError, exceptions.ClusterCrossSlotError)
#: Their codes, with which their texts begin.
CLUSTER_TEXTS = ("MOVED ", "ASK ", "CROSSSLOT ", "SELECT is not allowed in cluster mode")
#: Commands that each server with data has, in the error of a sentinel.
UNKNOWN = re.compile("unknown command ['`](EVALSHA|HGET|HMGET)", re.IGNORECASE)
#: Texts of Python's ssl when a server answers without TLS, or not at all: mostly, it waits for the end of
#: what it takes for a command.
_HANDSHAKE = re.compile("wrong.version.number|record.layer.failure|handshake operation timed out", re.I)
NO_TLS = (
    ". The port did not answer with TLS: has it any? Name the port that has it, or write redis:// in place "
    "of rediss:// (redis+cluster:// in place of rediss+cluster://), without options of TLS"
)
#: Texts that replace the code NOPERM in the error of a script: in Redis 7 and Valkey, and in Redis 6.2.
SCRIPT_NOPERM = ("ACL failure in script", "The user executing the script can't")
#: Commands that only the client of a cluster sends, in the text of a NOPERM.
OF_CLUSTER = re.compile("'(cluster|asking)", re.IGNORECASE)
#: The settings that have the password; messages never show its value.
URL = "lowkiq_url (broker_url, where lowkiq_url is not set)"
#: Advice for a node of a cluster that refuses what other nodes accept.
CREATE_USER = (
    "create the user there (`celery -A proj lowkiq acl --cluster` writes its rights) because Redis copies "
    "users neither to replicas nor to other masters"
)


K = TypeVar("K")
#: Replies, and apart from them errors, by the keys of what was asked.
Outcomes: TypeAlias = tuple[dict[K, Any], dict[K, StoreError]]


class ShardCountDiffers(StoreError):
    """A shard stores another number of shards than the script's argument."""

    def __init__(self, stored: str) -> None:
        super().__init__(f"the queue is changing its number of shards (a shard has {stored}): call again")
        self.stored = stored


class InconsistentKeys(ShardDamaged):
    """Keys of a shard disagree because one of them was lost. The store repairs this automatically."""


class WrongType(ShardDamaged):
    """A key of a shard, or a number in it, has the wrong type: another program wrote it."""


def script_error(key: str, error: BaseException) -> StoreError:
    """Translate an error of a script or command whose first key is ``key``; damage is of the key's shard."""
    text = str(error)[:MAX_TEXT]
    shard = shard_of_key(key)
    if shard is not None and text.startswith("DAMAGED"):
        key = text.partition(" ")[2]
        return InconsistentKeys(
            shard.queue, shard.index, f"{key} and the keys beside it disagree about its jobs"
        )
    if shard is not None and is_wrong_type(error):
        return WrongType(shard.queue, shard.index, f"Redis refused a command: {text.rstrip('.')}")
    return store_error(error)


def store_error(error: BaseException) -> StoreError:
    """Translate a redis-py exception."""
    text = str(error)[:MAX_TEXT]
    if (denied := _access_error(error, text)) is not None:
        return denied
    if "OOM command not allowed" in text or isinstance(error, exceptions.OutOfMemoryError):
        name = _name(error)
        return StoreFull(f"{name} is at its maxmemory: nothing was stored. {FULL}")
    # redis-py 5.0 raises a plain ResponseError for these, unless its client is one of a cluster.
    if isinstance(error, CLUSTER) or text.startswith(CLUSTER_TEXTS):
        return ClusterNode()
    if (unknown := UNKNOWN.match(text)) is not None:
        return SentinelAddress(unknown[1].upper())
    code, _, rest = text.partition(" ")
    refused = _refused(code, rest)
    if refused is not None:
        return refused
    if is_cluster_down(error):
        return ClusterDown(f"Redis is not available: {_with_node(error, text)}")
    # Redis 6.2 puts the error of a command within the text of the script's error.
    if (
        isinstance(error, UNREACHABLE)
        or code in UNAVAILABLE
        or any(f"-{known} " in text for known in UNAVAILABLE)
    ):
        name = _with_node(error, text or type(error).__name__)
        return StoreUnavailable(
            f"Redis is not available: {name.rstrip('.') + NO_TLS if lacks_tls(error) else name}"
        )
    return StoreError(f"Redis refused a command: {text}")


def lacks_tls(error: BaseException | None) -> bool:
    """True if a port did not answer as one with TLS does: it has none, or the server does not respond."""
    while error is not None:
        if _HANDSHAKE.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def is_cluster_down(error: object) -> bool:
    """True if a node refuses all keys; not when it says that one slot is not served."""
    return isinstance(error, exceptions.ResponseError) and "cluster is down" in str(error)


def _with_node(error: BaseException, text: str) -> str:
    """Return ``text`` with the node of a cluster that an error is of."""
    node = getattr(error, "node", None)
    if node is None or (name := host_port(*node)) in text:
        return text
    return f"{text.rstrip('. ')} ({name})"


def _name(error: BaseException) -> str:
    """Return Redis with the node of a cluster that an error is of."""
    node = getattr(error, "node", None)
    return "Redis" if node is None else f"Redis {host_port(*node)}"


def _refused(code: str, rest: str) -> StoreError | None:
    if code == "NOTOWNER":
        return NotOwner(f"another node owns the shard (its epoch is {rest})")
    if code == "SHARDS":
        return ShardCountDiffers(rest)
    if code == "FORMAT":
        reads, _, stored = rest.partition(" ")
        return StoreError(other_format("the shard", stored, reads))
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
    # The reply to a long command before a login.
    name, too_long = _name(error), text.startswith("Protocol error: unauthenticated")
    if isinstance(error, exceptions.AuthenticationError) or too_long:
        if "Authentication required" in text or too_long:
            return LoginRefused(f"{name} asks for a password (NOAUTH): add it to {URL}")
        if "without any password" in text or "no password is set" in text:
            advice = f"set it in Redis, or remove it from {URL}"
            return LoginRefused(f"{name} has no password, but received one (AUTH): {advice}")
        advice = f"correct them in {URL}, or in Redis"
        if hasattr(error, "node"):
            advice = f"{CREATE_USER}, or correct them in {URL}"
        return LoginRefused(f"{name} refuses user or password (WRONGPASS): {advice}")
    if isinstance(error, exceptions.NoPermissionError) or any(part in text for part in SCRIPT_NOPERM):
        cluster = " --cluster" if OF_CLUSTER.search(text) else ""
        there = " there" if hasattr(error, "node") else ""
        denied = AccessDenied(
            f"{name} does not permit this (NOPERM): {text.rstrip('. ')}. Give the user in {URL}{there} the "
            f"rights of what this process does: `celery -A proj lowkiq acl --role ROLE{cluster}` writes "
            f"those of a caller, a worker, a reader or an operator{' of a cluster' if cluster else ''}"
        )
        denied.master = host_port(*error.node) if hasattr(error, "node") else None
        return denied
    return None


def is_wrong_type(reply: object) -> bool:
    """True if a reply is the error of a command on a key or number of another type."""
    wrong = ("WRONGTYPE", "value is not an integer", "is not a valid float")
    return isinstance(reply, exceptions.ResponseError) and any(text in str(reply) for text in wrong)
