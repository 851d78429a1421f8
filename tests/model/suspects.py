"""Suspects of a death of their owner: they run alone, then payload by payload, until one is buried."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tests.model.jobs import Item, ModelJob


@dataclass(frozen=True)
class Suspect:
    """An id that ran when its owner died."""

    #: 1: it runs alone; 2: payload by payload; 3: its payload is to be buried.
    level: int
    #: Payloads of that run that have not left the queue since.
    left: frozenset[bytes]
    #: The largest score of that run.
    last: float
    #: The payload that deaths are of, and how many.
    crashing: bytes = b""
    deaths: int = 0

    def moved(self, job: ModelJob) -> Item | None:
        """The payload that runs in its old place, because a later call has moved it behind others."""
        first, *others = job.in_order()
        if self.level < 2 or first.payload in self.left or first.score <= self.last:
            return None
        return next(item for item in others if item.payload in self.left)


#: Of an id that did not run when its owner died.
NO_SUSPECT = Suspect(0, frozenset(), -math.inf)


class Suspects(dict[str, Suspect]):
    """The suspects of a shard, by id."""

    def add(self, job_id: str, items: list[Item], max_crashes: int) -> bool:
        """Note what ran when its owner died; return whether it is one payload that is to be buried.

        Only deaths of a single payload count.
        """
        known = self.get(job_id, NO_SUSPECT)
        left = known.left | {item.payload for item in items}
        last = max([known.last, *(item.score for item in items if item.payload not in known.left)])
        if job_id not in self or len(items) > 1:
            self[job_id] = Suspect(2 if job_id in self else 1, left, last)
            return False
        (item,) = items
        deaths = known.deaths + 1 if known.crashing == item.payload else 1
        condemned = deaths >= max_crashes
        if not condemned or item.flag:
            level = 3 if condemned else 2
            self[job_id] = Suspect(level, left, last, item.payload, deaths)
            return False
        self[job_id] = Suspect(2, left, max(last, item.score))
        return True

    def end_if_gone(self, job_id: str, waiting: ModelJob) -> None:
        """End the suspicion of an id of which no payload waits that ran at the crash."""
        suspect = self.get(job_id)
        if suspect is not None and not suspect.left & waiting.items.keys():
            del self[job_id]

    def leave(self, job_id: str, leaving: list[Item], success: bool) -> None:
        """Note what left the queue: payloads that came after the crash are no suspects."""
        suspect = self.get(job_id)
        if suspect is None or suspect.level == 3 or not leaving:
            return
        payloads = frozenset(item.payload for item in leaving)
        if success and suspect.crashing in payloads:
            suspect = replace(suspect, crashing=b"", deaths=0)
        if suspect.left <= payloads:
            del self[job_id]
        else:
            self[job_id] = replace(suspect, left=suspect.left - payloads)

    def ran(self, job_id: str, item: Item) -> None:
        """Note that a payload has run in its old place."""
        suspect = self.get(job_id)
        if suspect is not None and suspect.level < 3:
            self[job_id] = replace(suspect, last=max(suspect.last, item.score))
