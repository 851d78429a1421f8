"""Push durability: waits until replicas or the disk have a push."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_lowkiq.rules.basics import Clock, SystemClock
from celery_lowkiq.rules.errors import AccessDenied, ConfigurationError, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.text import QUOTED, shard_names, shortened
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.errors import K, Outcomes
from celery_lowkiq.store.exchange import Command
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.records import parse_whole

#: Timeout of one WAIT in ms, and of all its repetitions in s.
WAIT_MS = 500
CONFIRM_SECONDS = 5.0
WAIT_FSYNC = ("WAITAOF", 1, 0, WAIT_MS)
#: It confirms nothing, and is refused where WAIT_FSYNC is.
TRY_FSYNC = ("WAITAOF", 1, 0, 1)
NEEDS = "lowkiq_push_durability='fsynced' needs WAITAOF (Redis 7.2 or Valkey) and appendonly yes"

#: Shards whose server does not answer.
Unreachable = dict[ShardRef, StoreError]


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
#: By address.
Servers = Mapping[str, Server]


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

    def check(self, client: Client, shards: Iterable[ShardRef], sender: str) -> bool:
        """Check before a push that the servers support the level; return whether all of them have answered.

        Raises ConfigurationError when one does not: nothing was stored.
        """
        if self.level is not Level.FSYNCED:
            return True
        # WAITAOF has no key: on a cluster it goes where the command before it goes.
        reads = {shard: ("HGET", shard_keys(shard)["senders"], sender) for shard in client.streams(shards)}
        try:
            _, errors = client.each_pair(reads, TRY_FSYNC)
        except StoreUnavailable:
            return False
        except StoreError as error:
            raise ConfigurationError(f"{NEEDS}: {error}") from error
        return not errors

    def confirm(
        self,
        client: Client,
        shards: Iterable[ShardRef],
        clock: Clock | None = None,
        push: Pushed | None = None,
    ) -> None:
        """Wait until earlier writes to the shards have reached the level, those of ``push`` among them.

        Raises StoreUnavailable, which names the shards, when some have not within CONFIRM_SECONDS, when their
        server does not answer, or when a server that confirms does not have the push: it is not confirmed,
        and may be repeated. Raises ConfigurationError when the server does not support the level.
        """
        if self.level is Level.FAST:
            return
        now = (clock or SystemClock()).monotonic
        deadline = now() + CONFIRM_SECONDS
        shards = list(shards)
        left, unreachable = client.streams(shards), Unreachable()
        # Wait for the other servers, so that the error names what they have.
        while left := self._unconfirmed(client, left, push, unreachable):
            if now() >= deadline:
                break
        if left or unreachable:
            raise StoreUnavailable(self._not_confirmed(client, shards, left, unreachable))

    def confirm_move(self, client: Client, shards: Iterable[ShardRef], servers: Servers) -> None:
        """Confirm writes of a migration as :meth:`confirm` does; at FAST, wait for a replica if there is one.

        What is written anew was stored long before: a failover is to lose last calls only. ``servers``: from
        :func:`read_servers`, before the writes. Raises StoreUnavailable when another one has taken the
        place of one of them: it may lack the writes, and its own replicas confirm.
        """
        streams = client.streams(shards)
        if not streams:
            return
        if self.level is not Level.FAST:
            self.confirm(client, streams)
        elif replicated := [one for one in streams if _at(servers, client, one).has_replica]:
            Durability(Level.REPLICATED).confirm(client, replicated)
        found = read_servers(client, streams)
        for shard in streams:
            if _at(found, client, shard).replication_id != _at(servers, client, shard).replication_id:
                name = client.servers.master_of(shard)
                raise StoreUnavailable(
                    f"Redis {name} took over a shard while jobs moved; the next turn goes on"
                )

    def _not_confirmed(
        self, client: Client, shards: Sequence[ShardRef], left: Sequence[ShardRef], unreachable: Unreachable
    ) -> str:
        reasons = []
        if left:
            reasons.append(self._reason(client, left))
        if unreachable:
            reasons.append(
                f"{_names(client, unreachable)} did not confirm: {next(iter(unreachable.values()))}"
            )
        within = f" within {CONFIRM_SECONDS:.0f} s" if left else ""
        masters = {client.servers.master_of(shard) for shard in (*left, *unreachable)}
        part = part_of([shard for shard in shards if client.servers.master_of(shard) in masters], len(shards))
        return (
            f"it was stored, but not confirmed as {self.level.value}{within}{part}: {'; '.join(reasons)}; "
            "to call again may run it twice"
        )

    def _reason(self, client: Client, shards: Sequence[ShardRef]) -> str:
        """Say which masters did not confirm, and what to do."""
        if self.level is Level.FSYNCED:
            return f"the disk of {_names(client, shards)} is too slow, look at its load and at appendfsync"
        try:
            servers = read_servers(client, shards)
        except StoreError:
            servers = {}
        known = [one for one in shards if client.servers.master_of(one) in servers]
        alone = [one for one in known if not _at(servers, client, one).has_replica]
        reasons = []
        if alone:
            reasons.append(f"{_names(client, alone)} has no replica, start one or connect it again")
        if late := [one for one in shards if one not in alone]:
            few = f"fewer than {self.replicas} replicas of {_names(client, late)} have it"
            reasons.append(f"{few}, look at their lag")
        return "; ".join(reasons)

    def _unconfirmed(
        self, client: Client, shards: Sequence[ShardRef], push: Pushed | None, unreachable: Unreachable
    ) -> list[ShardRef]:
        """Return the shards whose server has answered and not confirmed; add those without an answer to
        ``unreachable``.
        """
        wait = ("WAIT", self.replicas, WAIT_MS) if self.level is Level.REPLICATED else WAIT_FSYNC
        commands: dict[tuple[ShardRef, str], Command] = {}
        for shard in shards:
            # Both count writes of their own connection: this one changes nothing, and comes after the push.
            commands[shard, "write"] = ("HINCRBY", shard_keys(shard)["meta"], "last_arrival", 0)
            commands[shard, "wait"] = wait
        # A server that has taken the place of the one with the push counts its own replicas, which may have
        # all that it has itself. Read after the wait: its place may be taken meanwhile.
        gone = {client.servers.master_of(shard) for shard in unreachable}
        if push:
            commands |= {
                (shard, "sent"): ("HGET", shard_keys(shard)["senders"], push.sender)
                for shard in push.shards
                if client.servers.master_of(shard) not in gone
            }
        found, errors = self._each(client, commands)
        if push:
            sent = {shard: reply for (shard, what), reply in found.items() if what == "sent"}
            _check_sent(sent, push, self.level)
        asked = {client.servers.master_of(shard) for shard in shards}
        for (shard, what), error in errors.items():
            # The master of a stream may be unreachable by now.
            if what != "sent" or client.servers.master_of(shard) in asked:
                unreachable[shard] = error
        there = [shard for shard in shards if shard not in unreachable]
        return [shard for shard in there if not self._is_enough(found[shard, "wait"])]

    def _each(self, client: Client, commands: Mapping[K, Command]) -> Outcomes[K]:
        """Send commands as :meth:`Client.each_command` does. The only server may be unreachable."""
        try:
            return client.each_command(commands)
        except StoreUnavailable as error:
            return {}, dict.fromkeys(commands, error)
        except StoreError as error:
            if self.level is Level.REPLICATED:
                raise
            raise ConfigurationError(
                f"{NEEDS}: {str(error).rstrip('. ')}. What was sent is stored: to call again may run it twice"
            ) from error

    def _is_enough(self, reply: Any) -> bool:
        if self.level is Level.REPLICATED:
            return bool(reply >= self.replicas)
        on_disk, _ = reply
        return bool(on_disk >= 1)


def part_of(shards: Sequence[ShardRef], count: int) -> str:
    """Return words for some of a call's shards, to go on with in a sentence; none for its only one."""
    if count == 1:
        return ""
    return f" in shards {shortened(shard_names(shards), QUOTED)} ({len(shards)} of {count})"


def _check_sent(sent: Mapping[ShardRef, Any], push: Pushed, level: Level) -> None:
    """Raise StoreUnavailable when shards do not have the push."""
    # A shard stores '<n> <s>' of a sender: the number of its last push, and when it came.
    numbers = {shard: parse_whole((reply or b"").partition(b" ")[0]) for shard, reply in sent.items()}
    lost = [shard for shard, number in numbers.items() if number <= push.after]
    if lost:
        raise StoreUnavailable(
            f"it was lost in a failover or restart before it was {level.value}"
            f"{part_of(lost, len(push.shards))}; call again"
        )


def _names(client: Client, shards: Iterable[ShardRef]) -> str:
    return "Redis " + ", ".join(sorted({client.servers.master_of(shard) for shard in shards}))


def _at(servers: Servers, client: Client, shard: ShardRef) -> Server:
    return servers.get(client.servers.master_of(shard)) or UNKNOWN


def read_servers(client: Client, shards: Iterable[ShardRef]) -> Servers:
    """Return the masters of the shards, without masters that are unreachable or deny INFO."""
    # INFO has no key: on a cluster it goes where the command before it goes.
    reads = {shard: ("HLEN", shard_keys(shard)["meta"]) for shard in client.streams(shards)}
    try:
        found, _ = client.each_pair(reads, ("INFO", "replication"))
    except StoreError as error:
        # Some services rename INFO instead.
        if isinstance(error, AccessDenied) or "unknown command" in str(error):
            return {}
        raise
    return {
        client.servers.master_of(shard): Server(
            about.get("master_replid"),
            bool(about.get("connected_slaves") or about.get("connected_replicas")),
        )
        for shard, (_, about) in found.items()
    }
