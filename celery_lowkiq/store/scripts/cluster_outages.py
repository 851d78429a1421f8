"""Which masters of a Redis Cluster are away, and the log of when that began and ended."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from redis import exceptions

from celery_lowkiq.rules.loggers import store_logger as logger
from celery_lowkiq.rules.text import host_port, sentence

#: Host and port of a node.
Address: TypeAlias = tuple[str, int]
#: The master of each slot; None: no master that is known has it.
Slots: TypeAlias = list["Address | None"]


class Outage(NamedTuple):
    """Monotonic times (s): of the first command without an answer, and when that was noted."""

    since: float
    noted_at: float
    #: The slots that the node had.
    slots: Sequence[int]


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
        self._lock = threading.Lock()

    def lost(self, address: Address, error: Exception, sent_at: float, slots: Slots) -> None:
        """Note that a node did not answer what was sent at a monotonic time; the first time, log it."""
        with self._lock:
            if sent_at <= self._ended_at.get(address, -math.inf):
                return
            if isinstance(error, exceptions.TimeoutError):
                self.silent.add(address)
            if address in self.away:
                return
            had = [slot for slot, master in enumerate(slots) if master == address]
            self.away[address] = Outage(sent_at, time.monotonic(), had)
        reason = sentence(str(error))
        logger.error("Redis %s is away: %s Its shards wait, the others go on.", text_of(address), reason)

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
        logger.warning("Redis %s is back after %.1f s.", text_of(address), now - outage.since)

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
        for address, outage in gone.items():
            heirs = sorted({heir for slot in outage.slots if (heir := slots[slot])})
            text = (
                f"its slots are on {', '.join(map(text_of, heirs))} now" if heirs else "it has no slots now"
            )
            seconds = now - outage.since
            logger.warning("Redis %s was replaced after %.1f s: %s.", text_of(address), seconds, text)

    def _end(self, address: Address) -> float:
        self.silent.discard(address)
        del self.away[address]
        self._ended_at[address] = now = time.monotonic()
        return now


#: By process and seeds.
_known: dict[tuple[int, tuple[Address, ...]], Outages] = {}


def outages_of(seeds: Sequence[Address]) -> Outages:
    """Return what this process knows of a cluster: its lanes and its callers have maps of their own."""
    return _known.setdefault((os.getpid(), tuple(seeds)), Outages())


def text_of(address: Address) -> str:
    """Return a node as text."""
    return host_port(*address)
