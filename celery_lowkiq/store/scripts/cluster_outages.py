"""Which masters of a Redis Cluster are away or refuse commands, and the log of when that began and ended."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from redis import exceptions

from celery_lowkiq.rules.loggers import store_logger as logger
from celery_lowkiq.rules.text import host_port, sentence

#: Host and port of a node.
Address: TypeAlias = tuple[str, int]
#: The master of each slot; None: no master that is known has it.
Slots: TypeAlias = list["Address | None"]
#: Name of a command; that of EVALSHA has the hash of its script.
Name: TypeAlias = tuple[Any, ...]

LOGIN, RIGHTS, WRITES, CALLS = "the login", "the commands of this user", "writes", "calls"
COMMANDS = "all commands"
#: What follows; the workers drain a full Redis.
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
    """What a node refuses: the commands, and the monotonic times (s) of the first and the last one."""

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
    """A node was not asked, since it did not answer another thread in time."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"{text_of(address)} did not answer in time")


class Outages:
    """The outages of a cluster's nodes. Safe to share between threads, not across a fork."""

    def __init__(self) -> None:
        #: By node. One that stays away for good is removed when the map has no slots for it.
        self.away: dict[Address, Outage] = {}
        #: Of these, the ones that accept connections or commands and say nothing. Only the thread that reads
        #: the map asks them again.
        self.silent: set[Address] = set()
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
                self.silent.add(address)
            if outage := self.away.get(address):
                self.away[address] = outage._replace(last=max(sent_at, outage.last))
                return
            if isinstance(error, NotAsked):
                # It has answered since.
                return
            had = [slot for slot, master in enumerate(slots) if master == address]
            self.away[address] = Outage(sent_at, time.monotonic(), had, sent_at)
        # Whether the others go on depends on cluster-require-full-coverage.
        logger.error("Redis %s is away: %s Its shards wait.", text_of(address), sentence(str(error)))

    def answered(self, address: Address, sent_at: float) -> None:
        """Note that a node answered what was sent at a monotonic time; after an outage, log it."""
        with self._lock:
            outage = self.away.get(address)
            if outage is None:
                return
            # The node may have answered an earlier command before it went away.
            if sent_at <= outage.noted_at:
                return
            now = self._end(address)
        logger.warning("Redis %s is back after %s.", text_of(address), _lasted(outage, now))

    def refused(self, address: Address, command: Name, refused: Refused) -> None:
        """Note that a node refused a command; the first time, log it."""
        what, text, sent_at = refused
        with self._lock:
            # A node that has just started refuses all for a second.
            if address in self.away and what == COMMANDS:
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
            gone = {address: self.away[address] for address in self.away.keys() - masters}
            now = time.monotonic()
            for address in gone:
                self._end(address)
                self._ended_at[address] = math.inf
            self.silent &= masters
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
        self.silent.discard(address)
        del self.away[address]
        self._ended_at[address] = now = time.monotonic()
        return now


def _lasted(outage: Outage, now: float) -> str:
    """Return how long an outage lasted; a process that asked nothing meanwhile knows only the limits."""
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
