"""The exceptions of the package, under one root."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from typing import Any

from celery_lowkiq.rules.models import Layout, ShardRef
from celery_lowkiq.rules.text import by_master


class LowkiqError(Exception):
    """Base class of all errors that celery-lowkiq raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the class, whose arguments may differ from ``args``.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ConfigurationError(LowkiqError, ValueError):
    """A setting or a task option is unknown or has an invalid value."""


class InvalidCall(LowkiqError, ValueError):
    """A call has an invalid id, payload, score or time; nothing of the call was stored."""


class UnknownTracker(InvalidCall):
    """The tracker does not exist: it has expired, or is in another Redis."""

    def __init__(self, tracker: str) -> None:
        super().__init__(f"tracker {tracker} has expired, or is in another Redis: track() opens a new one")
        self.tracker = tracker


class PayloadError(InvalidCall):
    """A payload cannot be serialized, or is larger than ``lowkiq_max_payload_bytes``."""


class UndecodablePayload(LowkiqError):
    """Bytes in the store cannot be decoded as a payload; the worker moves them to the morgue."""


class ResultsUnavailable(LowkiqError):
    """The result backend did not store the result of a call. A retry is safe."""


class BadDump(LowkiqError):
    """A file is not a dump, is truncated, or is the dump of another queue."""


class QueueResharded(LowkiqError):
    """The number of shards of the queue changed while something was done with the former one."""

    def __init__(self, queue: str, layout: Layout) -> None:
        super().__init__(f"queue {queue!r} has {layout.shards} shards since a moment ago. Do the same again")
        self.queue = queue
        self.layout = layout


class QueueMigrating(LowkiqError):
    """The jobs of the queue are moving to another number of shards; what was asked for needs them at rest."""

    def __init__(self, queue: str, layout: Layout) -> None:
        super().__init__(
            f"queue {queue!r} is moving from {layout.former} to {layout.shards} shards. Do the same again "
            f"when that has ended: `celery -A proj lowkiq reshard {queue} --watch` waits for it, and shows "
            "whether it is paused"
        )


class MigrationPaused(QueueMigrating):
    """The queue's migration is paused, so that it does not end."""

    def __init__(self, queue: str, layout: Layout) -> None:
        LowkiqError.__init__(
            self,
            f"queue {queue!r} is moving from {layout.former} to {layout.shards} shards, and the move is "
            f"paused. Resume it with `celery -A proj lowkiq reshard {queue} --resume`",
        )


class MigrationAborted(LowkiqError):
    """The queue's migration was aborted while something waited for its end."""

    def __init__(self, queue: str, shards: int) -> None:
        super().__init__(f"the move of queue {queue!r} to {shards} shards was aborted")


class NotMigrating(LowkiqError):
    """There is no migration of the queue that could be paused, resumed or aborted."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue {queue!r} is not moving to another number of shards, or all its jobs have moved"
        )


class NotAbortable(LowkiqError):
    """The queue's migration may be the way back of an aborted one: Redis has lost whether it is."""

    def __init__(self, queue: str, shards: int) -> None:
        super().__init__(
            f"the move of queue {queue!r} to {shards} shards cannot be aborted: Redis has lost whether it is "
            "itself the way back of another one. It goes on; wait for its end, and change the number again"
        )


class FormatMismatch(LowkiqError):
    """The queue was written by a release of celery-lowkiq with another storage format."""


def other_format(subject: str, stored: str, reads: str | int) -> str:
    """Return the text about a queue or shard whose format is not ``reads``; ``stored``: "" for none."""
    written = f"in format {stored}" if stored else "without the number of its format"
    return (
        f"{subject} is stored {written}, this release reads format {reads} only: drain it with the release "
        "that wrote it, or start on an empty key prefix (docs/upgrading.md)"
    )


class StoreError(LowkiqError):
    """An operation on Redis failed."""

    #: The condition that ends it, in the log of a worker that waits for it.
    until = "it is back"


class ClusterNode(StoreError, ConfigurationError):
    """The server is a node of a Redis Cluster, and the URL is not one of a cluster."""

    until = "the URL is corrected"

    def __init__(self) -> None:
        super().__init__(
            "lowkiq_url, or broker_url without it, is a node of a Redis Cluster: expected a server without "
            "cluster mode, or a URL of a cluster. Set lowkiq_url to redis+cluster://host:port (with TLS "
            "rediss+cluster://host:port)"
        )


class NotClusterNode(StoreError, ConfigurationError):
    """The URL is one of a cluster, and the server is no node of one."""

    def __init__(self) -> None:
        super().__init__(
            "lowkiq_url begins with redis+cluster://, but its server has no cluster mode: expected nodes of "
            "a Redis Cluster. Set it to redis://host:port/db for one server"
        )


class SentinelAddress(StoreError, ConfigurationError):
    """The server knows no commands for data, and the URL is not one of sentinels."""

    until = "the URL is corrected"

    def __init__(self, command: str) -> None:
        super().__init__(
            f"lowkiq_url, or broker_url without it, names a server that does not know {command}, such as a "
            "sentinel: expected one that stores data. For the master that sentinels name, set lowkiq_url to "
            "sentinel://host:26379?master_name=NAME"
        )


class StoreUnavailable(StoreError):
    """Redis cannot be reached, is loading, or did not answer in time. Writes may or may not have happened."""


class SubscriptionLost(StoreUnavailable):
    """On a cluster, the node of a subscription is unreachable: other nodes carry the same messages."""


class ClusterDown(StoreUnavailable):
    """A master of a cluster refuses all scripts: slots have no master, or it cannot reach most masters."""


class ShardsUnreachable(StoreUnavailable):
    """On a cluster, an action is done but for shards whose master is unreachable; of these, parts may be
    done.

    ``count``: what it has changed; ``shards``: those that it left out, with the addresses of their masters.
    """

    def __init__(self, count: int, shards: Mapping[ShardRef, str]) -> None:
        left_out = "; ".join(
            f"{names} ({master} is unreachable)" for master, names in by_master(shards).items()
        )
        super().__init__(
            f"shards were left out: {left_out}. What other masters store is done. Do the same again when all "
            "masters are back"
        )
        self.count = count
        self.shards = shards


class LoginRefused(StoreUnavailable):
    """Redis rejected the user or password; nothing was stored."""

    until = "it accepts them"


class AccessDenied(StoreError):
    """The Redis user lacks a permission (NOPERM); nothing was stored."""

    #: Address of the master of a cluster that denies it.
    master: str | None = None
    until = "that is permitted"


class MasterDenies(AccessDenied, StoreUnavailable):
    """On a cluster, the user lacks a permission at one master: the shards there wait, or are in no count."""


class StoreFull(StoreUnavailable):
    """Redis has reached ``maxmemory`` and refuses writes; nothing was stored. Running workers drain."""


class ShardDamaged(StoreError):
    """Keys of a shard are missing or hold foreign data, and automatic repair did not apply."""

    def __init__(self, queue: str, index: int, reason: str) -> None:
        super().__init__(
            f"shard {queue}/{index} is damaged: {reason}. `celery -A proj lowkiq repair {queue}` shows what "
            "can be repaired, and repairs it with --yes."
        )
        self.queue = queue
        self.index = index
        self.reason = reason


class ShardRepairing(ShardDamaged):
    """Keys of a shard were lost and are being repaired; the shard is served after the repair."""


class QueueFull(StoreError):
    """A shard has reached the task's ``max_length``, or an id that a death holds its ``hold_max``.

    No call for the shard was stored. A retry is safe.
    """


class NotOwner(StoreError):
    """The shard is owned by another node by now; the script changed nothing."""
