"""Clients of a Redis Cluster: each command goes to the master of its slot."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import redis
from redis import exceptions

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.topology import Kind
from celery_lowkiq.store.cluster_map import (
    LATER,
    LOGIN,
    LOST,
    REDIRECTED,
    REFUSED,
    RIGHTS,
    Address,
    ClusterMap,
    Name,
    Outages,
    final,
    is_lost,
    may_follow,
    parse_redirect,
    refusal,
    slot_of,
    text_of,
)
from celery_lowkiq.store.connect import PROTOCOL
from celery_lowkiq.store.exchange import Asked, Command, KeepingPool, Kept, packed, with_words
from celery_lowkiq.store.keys import KEYLESS, reports_key, shard_keys
from celery_lowkiq.store.script import Script, scripts_of_workers

# Exchanges with several masters of a Redis Cluster at the same time.

#: Redis-py's conversions of replies, by command.
_CONVERT: Mapping[str, Any] = redis.Redis(
    connection_pool=redis.ConnectionPool(protocol=PROTOCOL)
).response_callbacks

#: Seconds within which a master answers that is as good as any other one.
NEAR = 0.05
#: Number of late masters after which no further one is tried.
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
    sent = _send(cluster, address, commands)
    return sent if isinstance(sent, list) else _read(cluster, sent, commands)


def exchange_all(cluster: ClusterMap, parts: Mapping[Address, Sequence[Command]]) -> dict[Address, list[Any]]:
    """Send each node its commands, then read all replies. See :func:`exchange_one`."""
    opened: list[_Sent] = []
    replies: dict[Address, list[Any]] = {}
    try:
        # In one order for all threads: none has a connection that another one waits for, while it waits for
        # one of that other's.
        for address in sorted(parts):
            begun = _send(cluster, address, parts[address])
            if isinstance(begun, list):
                replies[address] = begun
            else:
                opened.append(begun)
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


def find_near(cluster: ClusterMap, last: Address | None) -> Address:
    """Return the first master that answers within NEAR, or the fastest of MOST_FAR. ``last``: tried last.

    Raises StoreError, RedisError, OSError.
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


def _send(cluster: ClusterMap, address: Address, commands: Sequence[Command]) -> _Sent | list[Any]:
    """Send commands over a connection of the pool. If that fails, return the replies."""
    sent, now = None, time.monotonic()
    if any(" " in command[0] for command in commands):
        commands = with_words(commands)
    try:
        cluster.check_responsive(address)
        pool = cluster.pool(address)
        kept = pool.take_kept()
        sent = _Sent(address, pool, kept or pool.take_new(), now, is_new=kept is None)
        sent.kept.connection.send_packed_command(packed(sent.kept.connection, commands))
    except BaseException as error:
        if sent is not None:
            _give_up(sent)
        if not isinstance(error, (exceptions.RedisError, OSError)):
            raise
        return _unanswered(cluster, address, error, commands, now)
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
    if outages.unreachable and not all(map(may_follow, replies)):
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


# Client of a Redis Cluster: each command goes to the master that has its key's slot, to all masters at once.
#
# Redis-py's own cluster pipeline asks the server for the keys of each script, and repeats commands that were
# answered.

#: Commands without a key about the writes of their own connection: another connection may answer them at
#: once.
OF_CONNECTION = frozenset({"WAIT", "WAITAOF"})
#: How long a batch follows redirections and waits for slots that move, in s.
PATIENCE = 1.0
#: The same for a caller that serves shards of other masters meanwhile, and repeats what was not answered.
SHORT_PATIENCE = 0.1
#: Between two attempts at a slot that moves, in s.
PAUSE = 0.02


#: In place of the address of a slot's master.
NO_MASTER = "a slot without a master"


class ClusterClient:
    """Sends each command to the master that has the slot of its key. All keys of a script have one slot.

    A command whose master is unreachable is answered with an error of its own; the others of its batch are
    answered as always. Methods raise StoreError when nothing is known about the cluster's masters.
    """

    kind = Kind.CLUSTER

    def __init__(self, cluster: ClusterMap) -> None:
        self.map = cluster
        #: True in a worker, which has other shards to serve: it gives a slot that moves up after a tenth of a
        #: second, and loads its scripts together.
        self.waits_less: bool = False
        #: The master of the last subscription that was lost.
        self._lost: Address | None = None

    def close(self) -> None:
        """Close all connections."""
        self.map.close()

    def address(self) -> str:
        """Return where the cluster is, without user and password."""
        return f"cluster {self.map.text}"

    def behind_sentinels(self) -> str | None:
        """Return that there are no sentinels."""
        return None

    def masters(self) -> list[Asked]:
        """Return the masters that have slots, sorted by address.

        The map is read anew: without other traffic, no reply has shown a failover.
        """
        self.map.read_anew()
        counts = Counter(address for address in self.map.slots() if address)
        return [
            Asked(text_of(address), counts[address], partial(exchange_one, self.map, address))
            for address in sorted(counts)
        ]

    def refusing_replicas(self) -> list[str]:
        """Return the addresses of the replicas that refuse user or password."""
        return [text_of(address) for address in self.map.refusing_replicas()]

    def master_of(self, shard: ShardRef) -> str:
        """Return the address of a shard's master, or that its slot has none."""
        address = self.map.slots()[slot_of(shard_keys(shard)["meta"])]
        return text_of(address) if address else NO_MASTER

    def is_unreachable(self, shard: ShardRef) -> bool:
        """True if a shard's master has not answered lately, or its slot has none."""
        address = self.map.slots()[slot_of(shard_keys(shard)["meta"])]
        return address is None or address in self.map.outages.unreachable

    def apart(self) -> redis.Redis:
        """Return a client of one master that answers soon: the cluster carries what is published to all.

        The master of the last one that was lost is asked last: it may be unresponsive, and not known to be.
        Raises StoreError, RedisError, OSError.
        """
        return self.map.apart(find_near(self.map, last=self._lost))

    def is_lost(self, client: redis.Redis) -> bool:
        """True if the client's node does not answer, or is no master any more."""
        address = _address_of(client)
        return address in self.map.outages.unreachable or address not in self.map.slots()

    def note_lost(self, client: redis.Redis) -> None:
        """Ask another master first for the next subscription."""
        self._lost = _address_of(client)

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip. Return their replies; that of a refused or lost one is its
        error.
        """
        slots, masters = list(slots_of(commands)), self.map.slots()
        address, *others = {masters[slot] for slot in slots}
        if address is not None and not others:
            replies = exchange_one(self.map, address, commands)
        else:
            batch = _Batch(self.map, commands, slots)
            batch.send(range(len(commands)))
            replies = batch.replies
        for reply in replies:
            if isinstance(reply, (exceptions.RedisError, OSError)):
                return _Batch(self.map, commands, slots, replies).followed(self.waits_less)
        return replies

    def load(self, missing: Iterable[tuple[Script, Any]], flags: bool) -> dict[tuple[Script, Any], Any]:
        """Load scripts at the masters that do not have them. Return the replies of masters that respond: the
        commands that need the scripts are sent again, and answered one by one.
        """
        parts: dict[Address, dict[Script, None]] = {}
        for script, node in missing:
            parts.setdefault(node, {})[script] = None
        if self.waits_less:
            self._load_together(parts)
        sent = {node: [("SCRIPT LOAD", one.text(flags)) for one in parts[node]] for node in parts}
        loaded: dict[tuple[Script, Any], Any] = {}
        for node, replies in exchange_all(self.map, sent).items():
            first, *_ = parts[node]
            if (refused := refusal(replies[0])) and (self.waits_less or refused.what != RIGHTS):
                # Ends when another process has loaded this script. The node may have some of the others.
                self.map.outages.refused(node, ("EVALSHA", first.shas[flags]), refused)
            found = zip(parts[node], replies, strict=True)
            loaded |= {(script, node): reply for script, reply in found if not isinstance(reply, LOST)}
        return loaded

    def _load_together(self, parts: Mapping[Address, dict[Script, None]]) -> None:
        """Add what else a worker runs as soon as it starts.

        A master that has just started has none of it: a worker waited for it twice for each script in turn.
        """
        together = scripts_of_workers()
        for node, scripts in parts.items():
            # One that denies it is not sent all of them each time.
            if together & scripts.keys() and (node, RIGHTS) not in self.map.outages.refusing:
                scripts.update(dict.fromkeys(together))


def slots_of(commands: Sequence[Command]) -> Iterator[int]:
    """Return the slot of each command: without a key, that of the one before it, or of the next one."""
    last = None
    for command in commands:
        name = command[0]
        if name == "EVALSHA":
            last = slot_of(command[3])
        elif name not in KEYLESS:
            last = slot_of(_key(command))
        elif last is None:
            keyed = (_key(each) for each in commands if each[0] not in KEYLESS)
            last = next(map(slot_of, keyed), slot_of(reports_key()))
        yield last


def _address_of(client: redis.Redis) -> Address:
    found = client.connection_pool.connection_kwargs
    return found["host"], found["port"]


def _key(command: Command) -> str:
    name = command[0]
    return str(command[3 if name in ("EVALSHA", "EVAL") else 2 if name == "MEMORY" else 1])


class _Batch:
    """Commands that are sent together, each with its slot, and their replies so far."""

    def __init__(
        self,
        cluster: ClusterMap,
        commands: Sequence[Command],
        slots: list[int],
        replies: list[Any] | None = None,
    ) -> None:
        self.replies: list[Any] = replies or [None] * len(commands)
        self._cluster = cluster
        self._commands = commands
        self._slots = slots
        #: By position, the node that a slot moves to, to which the command was redirected once.
        self._asked: dict[int, Address] = {}

    def send(self, positions: Iterable[int]) -> None:
        """Send commands to their masters, and note the replies."""
        masters = self._cluster.slots()
        parts: defaultdict[Address, dict[int, Command]] = defaultdict(dict)
        for n in positions:
            asked = self._asked.get(n) if self._asked else None
            address = asked or masters[self._slots[n]]
            if address is None:
                self.replies[n] = exceptions.ClusterDownError(f"no master has slot {self._slots[n]}")
                continue
            if asked:
                parts[address][-1 - n] = ("ASKING",)
            parts[address][n] = self._commands[n]
        sent = {address: list(part.values()) for address, part in parts.items()}
        for address, found in exchange_all(self._cluster, sent).items():
            refused = None
            for place, reply in zip(parts[address], found, strict=True):
                if place >= 0:
                    self.replies[place] = refused or reply
                # Without the right to ASKING, the node names the former one again.
                refused = reply if isinstance(reply, exceptions.NoPermissionError) else None

    def followed(self, waits_less: bool) -> list[Any]:
        """Send refused commands again where they belong, for PATIENCE s at most; return all replies.

        What was answered is not repeated, and commands of a slot stay in their order. ``waits_less``: for
        SHORT_PATIENCE s; then, a missing right is logged as an outage of the master's shards.
        """
        deadline = time.monotonic() + (SHORT_PATIENCE if waits_less else PATIENCE)
        attempts, redirections = 1, 3
        left = self._refused(range(len(self._commands)))
        while left and time.monotonic() < deadline:
            if any(is_lost(self.replies[n]) for n in left):
                self._cluster.refresh()
                if not attempts:
                    left = [n for n in left if not is_lost(self.replies[n])]
                    continue
                attempts -= 1
            redirections -= 1
            # Nodes that have not heard of a failover redirect to each other.
            if not self._redirect(left) or redirections < 0:
                threading.Event().wait(PAUSE)
            sent = self._in_order(left)
            self.send(sent)
            left = self._refused(left)
        self._note_outages(waits_less)
        return [final(reply) for reply in self.replies]

    def _note_outages(self, logs_rights: bool) -> None:
        for n, reply in enumerate(self.replies):
            if isinstance(reply, LOST) and not isinstance(reply, REFUSED):
                # The map may name another node by now.
                lost: Any = reply
                self._cluster.outages.lost(lost.node, lost, lost.sent_at, self._cluster.slots())
            elif (refused := refusal(reply)) and (logs_rights or refused.what != RIGHTS):
                name = (LOGIN,) if refused.what == LOGIN else name_of(self._commands[n])
                self._cluster.outages.refused(reply.node, name, refused)

    def _refused(self, positions: Iterable[int]) -> list[int]:
        found: list[int] = []
        for n in positions:
            # A question to a server about the command before is sent again.
            follows = self._commands[n][0] in KEYLESS and found and found[-1] == n - 1
            if follows or (self._commands[n][0] not in OF_CONNECTION and may_follow(self.replies[n])):
                found.append(n)
        return found

    def _redirect(self, positions: Iterable[int]) -> bool:
        """Note where commands are to be sent. False when a slot must be waited for."""
        at_once = True
        self._asked = {}
        for n in positions:
            reply = self.replies[n]
            if self._commands[n][0] in KEYLESS and n - 1 in self._asked:
                self._asked[n] = self._asked[n - 1]
            elif isinstance(reply, REDIRECTED):
                address = parse_redirect(reply, self.replies[n].node)
                if isinstance(reply, exceptions.MovedError):
                    self._cluster.moved(self._slots[n], address)
                    self._cluster.refresh()
                else:
                    self._asked[n] = address
            elif isinstance(reply, LATER):
                # The slot may have moved on, or its master may have been replaced.
                self._cluster.refresh()
                at_once = False
        return at_once

    def _in_order(self, positions: Iterable[int]) -> list[int]:
        """Return those that overtake no command of their slot, which is sent to another node."""
        first: dict[int, Address | None] = {}
        held: set[int] = set()
        found: list[int] = []
        for n in positions:
            slot, asked = self._slots[n], self._asked.get(n)
            if slot in held or first.setdefault(slot, asked) != asked:
                held.add(slot)
            else:
                found.append(n)
        return found
