"""Push durability: waits until replicas or the disk have a push."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_lowkiq.rules.clock import Clock, SystemClock
from celery_lowkiq.rules.errors import AccessDenied, ConfigurationError, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import parse_whole
from celery_lowkiq.store.scripts.steps import Steps

#: Timeout of one WAIT in ms, and of all its repetitions in s.
WAIT_MS = 500
CONFIRM_SECONDS = 5.0
WAIT_FSYNC = ("WAITAOF", 1, 0, WAIT_MS)


class Pushed(NamedTuple):
    """A push to be confirmed: shards that have a number of the sender larger than ``after``."""

    shards: Sequence[ShardRef]
    sender: str
    after: int


class Server(NamedTuple):
    """A master: the id of its replication, which ends when another one takes its place or it starts again."""

    replication_id: str | None
    has_replica: bool


UNKNOWN = Server(None, False)
#: By address; None for a slot without a master.
Servers = Mapping[str | None, Server]


class Level(str, enum.Enum):
    """``lowkiq_push_durability``."""

    #: The server has it in memory.
    FAST = "fast"
    #: A number of replicas have it in memory.
    REPLICATED = "replicated"
    #: The server has it on its disk.
    FSYNCED = "fsynced"


@dataclass(frozen=True)
class Durability:
    """A level, and for REPLICATED the number of replicas."""

    level: Level = Level.FAST
    replicas: int = 1

    def confirm_steps(
        self,
        client: Client,
        shards: Iterable[ShardRef],
        clock: Clock | None = None,
        push: Pushed | None = None,
    ) -> Steps[None]:
        """Wait until earlier writes to the shards have reached the level, those of ``push`` among them.

        Raises StoreUnavailable when they have not within CONFIRM_SECONDS, or when a server that confirms does
        not have the push: it is not confirmed, and may be repeated. Raises ConfigurationError when the server
        does not support the level.
        """
        if self.level is Level.FAST:
            return
        now = (clock or SystemClock()).monotonic
        deadline = now() + CONFIRM_SECONDS
        left = client.streams(shards)
        while left := (yield from self._unconfirmed(client, left, push)):
            if now() >= deadline:
                reason = yield from self._reason(client, left)
                raise StoreUnavailable(
                    f"it was stored, but not confirmed as {self.level.value} within "
                    f"{CONFIRM_SECONDS:.0f} s: {reason}; to call again may run it twice"
                )

    def confirm_move_steps(self, client: Client, shards: Iterable[ShardRef], servers: Servers) -> Steps[None]:
        """As :meth:`confirm_steps`, for writes of a migration; at FAST, wait for a replica if there is one.

        What is written anew was stored long before: a failover is to lose last calls only. ``servers``: from
        :func:`read_servers_steps`, before the writes. Raises StoreUnavailable when another one has taken the
        place of one of them: it may lack the writes, and its own replicas confirm.
        """
        streams = client.streams(shards)
        if not streams:
            return
        if self.level is not Level.FAST:
            yield from self.confirm_steps(client, streams)
        elif replicated := [one for one in streams if _at(servers, client, one).has_replica]:
            yield from Durability(Level.REPLICATED).confirm_steps(client, replicated)
        found = yield from read_servers_steps(client, streams)
        for shard in streams:
            if _at(found, client, shard).replication_id != _at(servers, client, shard).replication_id:
                name = client.master_name(shard)
                raise StoreUnavailable(
                    f"Redis {name} took over a shard while jobs moved; the next turn goes on"
                )

    def _reason(self, client: Client, shards: Sequence[ShardRef]) -> Steps[str]:
        """Say which masters did not confirm, and what to do."""
        if self.level is Level.FSYNCED:
            return f"the disk of {_names(client, shards)} is too slow, look at its load and at appendfsync"
        try:
            servers = yield from read_servers_steps(client, shards)
        except StoreError:
            servers = {}
        known = [one for one in shards if client.master_of(one) in servers]
        alone = [one for one in known if not _at(servers, client, one).has_replica]
        if alone:
            return f"{_names(client, alone)} has no replica, start one or connect it again"
        return f"fewer than {self.replicas} replicas of {_names(client, shards)} have it, look at their lag"

    def _unconfirmed(
        self, client: Client, shards: Sequence[ShardRef], push: Pushed | None
    ) -> Steps[list[ShardRef]]:
        wait = ("WAIT", self.replicas, WAIT_MS) if self.level is Level.REPLICATED else WAIT_FSYNC
        # Both count writes of their own connection: this one changes nothing, and comes after the push.
        writes = [("HINCRBY", shard_keys(shard)["meta"], "last_arrival", 0) for shard in shards]
        commands = [each for write in writes for each in (write, wait)]
        # A server that has taken the place of the one with the push counts its own replicas, which may have
        # all that it has itself. Read after the wait: its place may be taken meanwhile.
        reads = [("HGET", shard_keys(one)["senders"], push.sender) for one in push.shards] if push else []
        try:
            replies = yield from client.command_steps([*commands, *reads])
        except StoreUnavailable:
            raise
        except StoreError as error:
            if self.level is Level.REPLICATED:
                raise
            raise ConfigurationError(
                "lowkiq_push_durability='fsynced' needs WAITAOF (Redis 7.2 or Valkey) and appendonly yes: "
                f"{error}"
            ) from error
        if push and not all(_number(sent) > push.after for sent in replies[len(commands) :]):
            raise StoreUnavailable(
                f"it was lost in a failover or restart before it was {self.level.value}; call again"
            )
        answers = zip(shards, replies[1 : len(commands) : 2], strict=True)
        if self.level is Level.REPLICATED:
            return [shard for shard, replicas in answers if replicas < self.replicas]
        return [shard for shard, (on_disk, _) in answers if on_disk < 1]


def _number(stored: bytes | None) -> int:
    """The number of a sender's last push; ``stored``: '<n> <s>', see ``push.lua``."""
    return parse_whole((stored or b"").partition(b" ")[0])


def _names(client: Client, shards: Iterable[ShardRef]) -> str:
    return "Redis " + ", ".join(sorted({client.master_name(shard) for shard in shards}))


def _at(servers: Servers, client: Client, shard: ShardRef) -> Server:
    return servers.get(client.master_of(shard)) or UNKNOWN


def read_servers_steps(client: Client, shards: Iterable[ShardRef]) -> Steps[Servers]:
    """Return the servers that have the shards; those that are away, or that forbid INFO, are left out."""
    streams = client.streams(shards)
    if not streams:
        return {}
    # INFO has no key: on a cluster it goes where the command before it goes.
    commands = [(("HLEN", shard_keys(shard)["meta"]), ("INFO", "replication")) for shard in streams]
    try:
        replies = yield from client.answer_steps([command for pair in commands for command in pair])
    except StoreError as error:
        # Some services rename INFO instead.
        if isinstance(error, AccessDenied) or "unknown command" in str(error):
            return {}
        raise
    return {
        client.master_of(shard): Server(
            about.get("master_replid"),
            bool(about.get("connected_slaves") or about.get("connected_replicas")),
        )
        for shard, about in zip(streams, replies[1::2], strict=True)
        if not isinstance(about, StoreUnavailable)
    }
