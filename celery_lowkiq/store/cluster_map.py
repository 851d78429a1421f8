"""The map of a Redis Cluster: its masters, its slots, and nodes that do not respond."""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from celery_lowkiq.rules.basics import store_logger as logger
from celery_lowkiq.rules.basics import try_start
from celery_lowkiq.rules.errors import AccessDenied, NotClusterNode
from celery_lowkiq.rules.text import host_port, sentence
from celery_lowkiq.store.errors import is_cluster_down, store_error
from celery_lowkiq.store.exchange import KeepingPool, NoFreeConnection

# Masters of a Redis Cluster that are unreachable or refuse commands, and the log of each begin and end.

#: Host and port of a node.
Address: TypeAlias = tuple[str, int]
#: The master of each slot; None: no master that is known has it.
Slots: TypeAlias = list["Address | None"]
#: Name of a command; that of EVALSHA has the hash of its script.
Name: TypeAlias = tuple[Any, ...]

LOGIN, RIGHTS, WRITES, CALLS = "the login", "the commands of this user", "writes", "calls"
COMMANDS = "all commands"
#: Consequences in the log; the workers drain a full Redis.
_FOLLOWS = {CALLS: "Jobs that it has stored run."}
#: Seconds without an attempt after which it is unknown when an outage ended, or a refusal.
UNWATCHED = 5.0


class Outage(NamedTuple):
    """Monotonic times (s): of the first and the last command without an answer; when the first was noted."""

    since: float
    noted_at: float
    #: The slots that the node had.
    slots: Sequence[int]
    last: float


class Refusals(NamedTuple):
    """Refusals of a node: the commands, and the monotonic times (s) of the first and the last one."""

    since: float
    commands: set[Name]
    last: float


class Refused(NamedTuple):
    """A refused command. ``what`` the node refuses: the login, writes, calls or all commands."""

    what: str
    #: Text about the node and the reason.
    text: str
    sent_at: float


class NotAsked(exceptions.ConnectionError):
    """A node got no request because it did not answer another thread in time."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"{text_of(address)} did not answer in time")


class Outages:
    """The outages of a cluster's nodes. Safe to share between threads, not across a fork."""

    def __init__(self) -> None:
        #: By node. A node that never comes back is removed when the map has no slots for it.
        self.unreachable: dict[Address, Outage] = {}
        #: Unresponsive nodes: they accept a connection but do not reply. Only the thread that reads the map
        #: sends to them again.
        self.unresponsive: set[Address] = set()
        #: Commands that were sent before these times say nothing about the node any more; infinite for a node
        #: that was replaced.
        self._ended_at: dict[Address, float] = {}
        #: By node and what it refuses. A command that is never sent again does not end it.
        self.refusing: dict[tuple[Address, str], Refusals] = {}
        self._accepted_at: dict[tuple[Address, str], float] = {}
        self._lock = threading.Lock()

    def lost(self, address: Address, error: Exception, sent_at: float, slots: Slots) -> None:
        """Note that a node did not answer what was sent at a monotonic time; the first time, log it."""
        with self._lock:
            if sent_at <= self._ended_at.get(address, -math.inf):
                return
            if isinstance(error, exceptions.TimeoutError):
                self.unresponsive.add(address)
            if outage := self.unreachable.get(address):
                self.unreachable[address] = outage._replace(last=max(sent_at, outage.last))
                return
            if isinstance(error, NotAsked):
                # It has answered since.
                return
            had = [slot for slot, master in enumerate(slots) if master == address]
            self.unreachable[address] = Outage(sent_at, time.monotonic(), had, sent_at)
        # The setting cluster-require-full-coverage decides if the other masters go on.
        logger.error("Redis %s is unreachable: %s Its shards wait.", text_of(address), sentence(str(error)))

    def answered(self, address: Address, sent_at: float) -> None:
        """Note that a node answered what was sent at a monotonic time; after an outage, log it."""
        with self._lock:
            outage = self.unreachable.get(address)
            if outage is None:
                return
            # The node may have answered an earlier command before it became unreachable.
            if sent_at <= outage.noted_at:
                return
            now = self._end(address)
        logger.warning("Redis %s is back after %s.", text_of(address), _lasted(outage, now))

    def refused(self, address: Address, command: Name, refused: Refused) -> None:
        """Note that a node refused a command; the first time, log it."""
        what, text, sent_at = refused
        with self._lock:
            # A node that has just started refuses all for a second.
            if address in self.unreachable and what == COMMANDS:
                return
            if sent_at <= self._accepted_at.get((address, what), -math.inf):
                return
            known = self.refusing.get((address, what))
            refusals = known or Refusals(sent_at, set(), sent_at)
            refusals.commands.add(command)
            self.refusing[address, what] = refusals._replace(last=max(sent_at, refusals.last))
        if known is None:
            logger.error("%s %s", sentence(text), _FOLLOWS.get(what, "Its shards wait."))

    def accepted(self, address: Address, what: str, command: Name, sent_at: float) -> None:
        """Note that a node executed a command; when it refused that before, log the end."""
        with self._lock:
            known = self.refusing.get((address, what))
            if known is None or command not in known.commands or sent_at <= known.since:
                return
            del self.refusing[address, what]
            self._accepted_at[address, what] = now = time.monotonic()
        seconds = now - known.since
        logger.warning("Redis %s accepts %s again after %.1f s.", text_of(address), what, seconds)

    def found(self, slots: Slots) -> None:
        """Note the masters of all slots; log the end of the outages of nodes that have none any more."""
        masters = set(slots)
        with self._lock:
            for address, ended_at in self._ended_at.items():
                if ended_at == math.inf and address in masters:
                    self._ended_at[address] = time.monotonic()
            gone = {address: self.unreachable[address] for address in self.unreachable.keys() - masters}
            now = time.monotonic()
            for address in gone:
                self._end(address)
                self._ended_at[address] = math.inf
            self.unresponsive &= masters
            # The map of a node that has not heard of a failover yet lacks the new master.
            self.refusing = {
                key: known
                for key, known in self.refusing.items()
                if key[0] in masters or now - known.last <= UNWATCHED
            }
        for address, outage in gone.items():
            heirs = sorted({heir for slot in outage.slots if (heir := slots[slot])})
            text = (
                f"its slots are on {', '.join(map(text_of, heirs))} now" if heirs else "it has no slots now"
            )
            logger.warning(
                "Redis %s was replaced after %s: %s.", text_of(address), _lasted(outage, now), text
            )

    def _end(self, address: Address) -> float:
        self.unresponsive.discard(address)
        del self.unreachable[address]
        self._ended_at[address] = now = time.monotonic()
        return now


def _lasted(outage: Outage, now: float) -> str:
    """Return how long an outage lasted; a process without requests meanwhile knows only the limits."""
    longest = f"{now - outage.since:.1f} s"
    if now - outage.last < UNWATCHED:
        return longest
    return f"{outage.last - outage.since:.1f} s to {longest} (nothing was sent to it meanwhile)"


#: By process and seeds.
_known: dict[tuple[int, tuple[Address, ...]], Outages] = {}


def outages_of(seeds: Sequence[Address]) -> Outages:
    """Return what this process knows of a cluster: its lanes and its callers have maps of their own."""
    return _known.setdefault((os.getpid(), tuple(seeds)), Outages())


def text_of(address: Address) -> str:
    """Return a node as text."""
    return host_port(*address)


# Replies of the nodes of a Redis Cluster: redirected, to repeat later, or lost.

#: Errors of a slot that moves or has no master for a moment.
LATER = (exceptions.TryAgainError, exceptions.ClusterDownError)
#: Errors that name another node: for good, or for one time only.
REDIRECTED = (exceptions.MovedError, exceptions.AskError)
LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
#: Errors that another attempt does not change.
REFUSED = (exceptions.AuthenticationError, exceptions.BusyLoadingError, NoFreeConnection)


def is_lost(reply: Any) -> bool:
    """True if a connection was lost that may be opened again."""
    # Not after a timeout: the next attempt would take as long.
    return isinstance(reply, LOST) and not isinstance(reply, (*REFUSED, exceptions.TimeoutError))


def may_follow(reply: Any) -> bool:
    """True if another attempt may be answered."""
    return isinstance(reply, (*LATER, *REDIRECTED)) or is_lost(reply)


def final(reply: Any) -> Any:
    """Return the reply that a caller gets when no more attempts are made."""
    if isinstance(reply, REDIRECTED):
        return exceptions.ConnectionError(f"a slot moves: {reply}")
    return exceptions.ConnectionError(str(reply)) if isinstance(reply, OSError) else reply


#: Refused commands, by the code of a node's error.
_CODES = {"NOREPLICAS": WRITES, "MISCONF": WRITES, "READONLY": WRITES, "OOM": CALLS, "CLUSTERDOWN": COMMANDS}
#: Redis 6.2 puts the error of a command within the text of the script's error.
_CODE = re.compile(rf"(?:^|-)({'|'.join(_CODES)}) (.*)")
#: Redis 7 names the line of the script behind the error.
_LINE = re.compile(r" script: \w+, on @.*")
#: Redis-py removes the codes of these.
_KNOWN = {
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ClusterDownError: "CLUSTERDOWN",
}
_DOWN = " (a slot has no master, and cluster-require-full-coverage is yes, or most masters are unreachable)"


def refusal(reply: Any) -> Refused | None:
    """Return what the node of a reply refuses, when that is more than this command."""
    error: Any = reply
    if not hasattr(error, "node"):
        return None
    if isinstance(reply, exceptions.AuthenticationError):
        return Refused(LOGIN, str(store_error(error)), error.sent_at)
    if not isinstance(reply, exceptions.ResponseError):
        return None
    if isinstance(denied := store_error(error), AccessDenied):
        return Refused(RIGHTS, str(denied), error.sent_at)
    code = next((code for kind, code in _KNOWN.items() if isinstance(reply, kind)), "")
    found = _CODE.search(f"{code} {error}".lstrip())
    if found is None:
        return None
    code, reason = found.groups()
    if code == "CLUSTERDOWN" and not is_cluster_down(error):
        return None
    what, reason = _CODES[code], _LINE.sub("", reason).rstrip(". ")
    text = f"Redis {text_of(error.node)} refuses {what}: {code} {reason}{_DOWN if what == COMMANDS else ''}"
    return Refused(what, text, error.sent_at)


# The map of a Redis Cluster: which master has each slot, and connections to each master.

SLOTS = 16384
#: Timeout in s of each node when the map is read: another one can answer when it does not.
ASK_SECONDS = 1.0
#: After how many s without a reply another node is tried, too.
STAGGER_SECONDS = 0.3
#: Timeout in s for the first map.
FIRST_SECONDS = 5.0
#: How long a caller waits for a map that is read anew, in s: one unresponsive node does not delay the map.
NEW_SECONDS = 1.5
#: Minimum seconds between two readings of the map.
BETWEEN_READINGS = 0.25


@lru_cache(maxsize=65536)
def slot_of(key: str) -> int:
    """Return the slot of a key."""
    return int(key_slot(key.encode()))


class ClusterMap:
    """Knows the masters of a cluster. Safe to share between threads, not across a fork.

    Nothing is connected before the first use. The map is read by a thread of its own, so that a node that
    does not answer delays no caller that knows its master; and a thread for each node reads it.
    """

    def __init__(
        self, seeds: Sequence[Address], options: Mapping[str, Any], pool_size: int, pool_timeout: float
    ) -> None:
        """``seeds``: some nodes; ``options``: arguments of each connection but host and port."""
        arguments = dict(options)
        self.connection_class: Any = arguments.pop("connection_class", redis.Connection)
        #: Options of a connection to the first seed.
        self.connection_kwargs: dict[str, Any] = {
            # The caller of a pool repeats what was not answered.
            **(arguments | {"retry": Retry(NoBackoff(), 0)}),
            "host": seeds[0][0],
            "port": seeds[0][1],
        }
        self._seeds = list(seeds)
        self._pool_options = {"max_connections": pool_size, "timeout": pool_timeout}
        self._pools: dict[Address, KeepingPool] = {}
        self._slots: Slots | None = None
        self._error: Exception | None = None
        self._is_reading = False
        self._next_reading = 0.0
        self._changed = threading.Condition()
        self.outages: Outages = outages_of(seeds)

    @property
    def text(self) -> str:
        """The seeds, without user and password."""
        return ",".join(map(text_of, self._seeds))

    def slots(self) -> Slots:
        """Return the masters of all slots. Raises StoreError when no seed returns them."""
        return self._slots or self._first_slots()

    def _first_slots(self) -> Slots:
        self.refresh()
        with self._changed:
            self._changed.wait_for(lambda: self._slots or not self._is_reading, FIRST_SECONDS)
            if self._slots is None:
                error = self._error or exceptions.ConnectionError(f"no node of {self.text} has answered")
                has_no_cluster = "cluster support disabled" in str(error)
                raise (NotClusterNode() if has_no_cluster else store_error(error)) from error
            return self._slots

    def masters(self) -> list[Address]:
        """Return the masters that have slots. Raises as :meth:`slots`."""
        return list(dict.fromkeys(address for address in self.slots() if address))

    def moved(self, slot: int, address: Address) -> None:
        """Note the master that another node has named."""
        self.slots()[slot] = address

    def refresh(self, at_once: bool = False) -> None:
        """Have the map read by another thread, unless that is going on or, but ``at_once``, was just done."""
        with self._changed:
            if self._is_reading or (time.monotonic() < self._next_reading and not at_once):
                return
            self._is_reading = True
        if error := try_start(threading.Thread(target=self._read, name="lowkiq-cluster-map", daemon=True)):
            # The next outage tries again.
            self._end_reading(None, exceptions.ConnectionError(str(error)))

    def read_anew(self) -> None:
        """Have the map read, and wait for that; when it takes too long, the map stays as it is."""
        self.refresh(at_once=True)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reading, NEW_SECONDS)

    def check_responsive(self, address: Address) -> None:
        """Raise NotAsked for an unresponsive node; the thread of the map tries it again."""
        if address in self.outages.unresponsive:
            self.refresh()
            raise NotAsked(address)

    def pool(self, address: Address) -> KeepingPool:
        """Return the pool of a node."""
        pool = self._pools.get(address)
        if pool is None:
            made = KeepingPool(
                connection_class=self.connection_class, **self._to(address), **self._pool_options
            )
            made.check = partial(self.check_responsive, address)
            with self._changed:
                pool = self._pools.setdefault(address, made)
        return pool

    def apart(self, address: Address) -> redis.Redis:
        """Return a client of one node with its own pool; close it."""
        own: redis.ConnectionPool = redis.ConnectionPool(
            connection_class=self.connection_class, **self._to(address)
        )
        return redis.Redis(connection_pool=own)

    def close(self) -> None:
        """Close all connections."""
        for pool in list(self._pools.values()):
            pool.disconnect()

    def _to(self, address: Address) -> dict[str, Any]:
        return {**self.connection_kwargs, "host": address[0], "port": address[1]}

    def _read(self) -> None:
        known = list({address for address in self._slots or () if address})
        random.shuffle(known)
        known.sort(key=self.outages.unreachable.__contains__)
        found, error = self._fullest(dict.fromkeys([*known, *self._seeds]))
        if found and self._slots and not _count(found):
            found = None
        self._end_reading(found, error)
        if found:
            self.outages.found(found)
            # Where nodes get new addresses, the pools of the former ones would remain.
            with self._changed:
                gone = [self._pools.pop(address) for address in self._pools.keys() - set(found)]
            for pool in gone:
                pool.close_idle()
        self._ask_unresponsive()

    def _fullest(self, addresses: Iterable[Address]) -> tuple[Slots | None, Exception | None]:
        """Return the first map that has all masters that are known, or else the fullest; and the last error.

        The map of a node that has lost its disk, or is just joining, lacks masters. A node is tried when the
        one before it has answered, or is late: then the first answer counts.
        """
        expected = max(1, _count(self._slots or ()))
        found, error = None, None
        answers, asked, left = SimpleQueue[Slots | Exception](), 0, list(addresses)
        while asked or left:
            if left:
                self._ask_apart(left.pop(0), answers)
                asked += 1
            try:
                told = answers.get(timeout=STAGGER_SECONDS if left else None)
            except Empty:
                continue
            asked -= 1
            if isinstance(told, Exception):
                error = told
            elif _count(told) >= expected:
                return told, error
            elif found is None or _count(told) > _count(found):
                found = told
        return found, error

    def _ask_apart(self, address: Address, answers: SimpleQueue[Slots | Exception]) -> None:
        """Read the map from a node in a thread of its own."""

        def ask() -> None:
            try:
                answers.put(parse_slots(self._slots_reported_by(address), address))
            except (exceptions.RedisError, OSError) as failure:
                answers.put(failure)
            except Exception as failure:  # noqa: BLE001 - an answer is waited for
                answers.put(exceptions.InvalidResponse(f"CLUSTER SLOTS cannot be read: {failure!r:.200}"))

        if try_start(threading.Thread(target=ask, name="lowkiq-cluster-node", daemon=True)):
            ask()

    def _end_reading(self, found: Slots | None, error: Exception | None) -> None:
        with self._changed:
            self._slots = found or self._slots
            self._error = error
            self._is_reading = False
            self._next_reading = time.monotonic() + BETWEEN_READINGS
            self._changed.notify_all()

    def _ask_unresponsive(self) -> None:
        # Not for longer than other threads wait: they would find the node unresponsive again.
        seconds = min(ASK_SECONDS, self.connection_kwargs.get("socket_timeout") or ASK_SECONDS)
        for address in list(self.outages.unresponsive):
            with contextlib.suppress(Exception):
                # A refusal is an answer, too: the node may deny the map only.
                with contextlib.suppress(exceptions.ResponseError, *REFUSED):
                    self._slots_reported_by(address, seconds)
                self.outages.unresponsive.discard(address)

    def refusing_replicas(self) -> list[Address]:
        """Return the replicas that refuse user or password, sorted. One that does not answer is left out."""
        replicas: set[Address] = set()
        for address in self.masters():
            with contextlib.suppress(exceptions.RedisError, OSError, TypeError, ValueError):
                replicas = parse_replicas(self._slots_reported_by(address), address)
                break
        return [address for address in sorted(replicas) if self._refuses(address)]

    def _refuses(self, address: Address) -> bool:
        try:
            self._slots_reported_by(address)
        except (exceptions.RedisError, OSError) as error:
            return isinstance(error, exceptions.AuthenticationError)
        return False

    def _slots_reported_by(self, address: Address, seconds: float = ASK_SECONDS) -> Any:
        timeouts = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        connection = self.connection_class(**{**self._to(address), **timeouts})
        try:
            connection.connect()
            # Redis 6.2 does not know CLUSTER SHARDS.
            connection.send_command("CLUSTER", "SLOTS")
            return connection.read_response()
        finally:
            connection.disconnect()


def parse_slots(reply: Sequence[Any], asked: Address) -> Slots:
    """Read the reply of CLUSTER SLOTS; ``asked``: the address of a node that does not know its host."""
    slots: Slots = [None] * SLOTS
    for first, last, (host, port, *about), *_ in reply:
        # Port 0: the other nodes have forgotten where this one is.
        address = (_host(host) or _ip(about) or asked[0], int(port)) if port else None
        if not 0 <= first <= last < SLOTS:
            raise ValueError(f"no slots: {first} to {last}")
        slots[first : last + 1] = [address] * (last + 1 - first)
    return slots


def parse_replicas(reply: Sequence[Any], asked: Address) -> set[Address]:
    """Read the replicas of all masters in the reply of CLUSTER SLOTS."""
    nodes = (node for _, _, _, *replicas in reply for node in replicas)
    return {(_host(host) or _ip(about) or asked[0], int(port)) for host, port, *about in nodes if port}


def parse_redirect(error: Exception, asked: Address) -> Address:
    """Read the node of a MOVED or ASK."""
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return _host(host) or asked[0], int(port)


def _count(slots: Sequence[Address | None]) -> int:
    return len(slots) - slots.count(None)


def _host(host: Any) -> str:
    text = host.decode() if isinstance(host, bytes) else host or ""
    # A node that prefers its hostname and has none sends "?".
    return "" if text == "?" else text


def _ip(about: Sequence[Any]) -> str:
    """The address of a node beside a host that is not known; ``about``: its id and, since Redis 7, fields."""
    fields = about[1] if len(about) > 1 else ()
    return _host(dict(zip(fields[::2], fields[1::2], strict=False)).get(b"ip"))
