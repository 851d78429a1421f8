"""Plain-Python model of the rules of a job, for one shard. No Redis, no packing, no scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_lowkiq.rules.models import Fate

#: Positions of payloads that are buried with an error, or dropped without one.
NONE_BAD: Mapping[int, bytes | None] = {}


@dataclass
class Item:
    """A payload with its score; ``arrival`` orders equal scores."""

    payload: bytes
    score: float
    arrival: int


@dataclass
class ModelJob:
    items: dict[bytes, Item]
    perform_in: float
    retry_count: int = -1
    error: bytes | None = None
    claim: int = 0

    def in_order(self) -> list[Item]:
        return sorted(self.items.values(), key=lambda item: (item.score, item.arrival))


@dataclass
class Model:
    """One shard: waiting, processing, morgue, and who died with what."""

    merge: str
    max_crashes: int
    waiting: dict[str, ModelJob] = field(default_factory=dict)
    processing: dict[str, ModelJob] = field(default_factory=dict)
    morgue: dict[str, ModelJob] = field(default_factory=dict)
    #: By id: level, the payload that deaths are of, and how many.
    suspects: dict[str, tuple[int, bytes, int]] = field(default_factory=dict)
    #: Ids that are paused, and whether the shard is: by itself ("shard"), with its queue ("queue").
    paused: set[str] = field(default_factory=set)
    pauses: set[str] = field(default_factory=set)
    processed: int = 0
    failed: int = 0
    merged: int = 0
    dead: int = 0
    claims: int = 0
    back: int = 0
    front: int = 0

    def unite(self, into: dict[bytes, Item], items: list[Item], older: bool) -> None:
        """Rule 2: of equal payloads the smaller (or larger) score stays; a tie keeps the earlier arrival."""
        for item in reversed(items) if older else items:
            if older:
                self.front -= 1
            else:
                self.back += 1
            arrival = self.front if older else self.back
            known = into.get(item.payload)
            if known is None or self._replaces(item.score, known.score, older):
                into[item.payload] = Item(item.payload, item.score, arrival)

    def _replaces(self, new: float, old: float, older: bool) -> bool:
        if new == old:
            return older
        return (new > old) == (self.merge == "max")

    def push(self, job_id: str, payload: bytes, score: float, perform_in: float) -> None:
        self.merged += job_id in self.waiting
        job = self.waiting.setdefault(job_id, ModelJob({}, perform_in))
        self.unite(job.items, [Item(payload, score, 0)], older=False)

    def claim(self, limit: int, now: float) -> list[str]:
        due = sorted(
            (self.waiting[job_id].perform_in, job_id.encode(), job_id)
            for job_id in self.claimable()
            if self.waiting[job_id].perform_in <= now
        )
        ids = [job_id for _, _, job_id in due[:limit]]
        for position, job_id in enumerate(ids):
            if job_id in self.suspects:
                ids = ids[: max(position, 1)]
                break
        self.claims += 1
        for job_id in ids:
            self._take(job_id)
        return ids

    def claimable(self) -> list[str]:
        """Ids that wait for nothing but their time."""
        if self.pauses:
            return []
        return [i for i in self.waiting if i not in self.processing and i not in self.paused]

    def next_due(self) -> float | None:
        return min((self.waiting[job_id].perform_in for job_id in self.claimable()), default=None)

    def _take(self, job_id: str) -> None:
        job = self.waiting.pop(job_id)
        level, _, _ = self.suspects.get(job_id, (0, b"", 0))
        if level == 2 and len(job.items) > 1:
            first = job.in_order()[0]
            self.waiting[job_id] = job
            del job.items[first.payload]
            job = ModelJob({first.payload: first}, job.perform_in, job.retry_count, job.error)
        job.claim = self.claims
        self.processing[job_id] = job

    def put_back(
        self, job_id: str, items: list[Item], perform_in: float, retry_count: int, error: bytes | None
    ) -> None:
        """Rule 3: payloads are united; perform_in and retry_count are those of the job that comes back."""
        if not items:
            return
        job = self.waiting.setdefault(job_id, ModelJob({}, perform_in))
        self.unite(job.items, items, older=True)
        job.perform_in, job.retry_count = perform_in, retry_count
        job.error = error if retry_count >= 0 else None

    def bury(self, job_id: str, items: list[Item], error: bytes | None) -> None:
        self.dead += len(items)
        if items:
            dead = self.morgue.setdefault(job_id, ModelJob({}, 0.0))
            dead.error = error
            self.unite(dead.items, items, older=False)

    def settle(
        self,
        job_id: str,
        claim: int,
        fate: Fate,
        retry_count: int,
        perform_in: float,
        now: float,
        error: bytes,
        bad: Mapping[int, bytes | None] = NONE_BAD,
    ) -> bool:
        job = self.processing.get(job_id)
        if job is None or job.claim != claim:
            return False
        del self.processing[job_id]
        claimed = job.in_order()
        items = [item for position, item in enumerate(claimed) if position not in bad]
        for position, item in enumerate(claimed):
            reason = bad.get(position)
            if reason is not None:
                self.bury(job_id, [item], reason)
        if fate is Fate.DONE:
            self.processed += 1
            if job_id in self.suspects:
                self.suspects[job_id] = (self.suspects[job_id][0], b"", 0)
        elif fate is Fate.RETURN:
            own = job.perform_in if perform_in == now else perform_in
            self.put_back(job_id, items, own, job.retry_count, job.error)
        else:
            self.failed += 1
        if fate is Fate.RETRY:
            self.put_back(job_id, items, perform_in, retry_count, error)
        elif fate is Fate.DIE:
            self.bury(job_id, items[:1], error)
            self.put_back(job_id, items[1:], now, -1, None)
        elif fate is Fate.BURY:
            self.bury(job_id, items, error)
        if job_id not in self.waiting:
            self.suspects.pop(job_id, None)
        return True

    def recover(self, crashed: bool, now: float) -> None:
        """Rule 8: what the former owner left goes back; jobs that keep killing their owner lose a payload."""
        for position, job_id in enumerate(self.in_claim_order()):
            job = self.processing.pop(job_id)
            items = job.in_order()
            if crashed:
                items = self._suspect(job_id, items)
            self.put_back(job_id, items, now + position * 1e-6, job.retry_count, job.error)

    def in_claim_order(self) -> list[str]:
        return sorted(self.processing, key=lambda i: (self.processing[i].claim, i.encode()))

    def _suspect(self, job_id: str, items: list[Item]) -> list[Item]:
        """Suspects run alone, then payload by payload; only deaths of a single payload count."""
        if job_id not in self.suspects:
            self.suspects[job_id] = (1, b"", 0)
        elif len(items) > 1:
            self.suspects[job_id] = (2, b"", 0)
        else:
            (item,) = items
            _, payload, count = self.suspects[job_id]
            count = count + 1 if payload == item.payload else 1
            self.suspects[job_id] = (2, item.payload, count)
            if count >= self.max_crashes:
                self.bury(job_id, items, b"poison pill")
                items = []
                if job_id in self.waiting:
                    self.suspects[job_id] = (2, b"", 0)
                else:
                    del self.suspects[job_id]
        return items

    def queue_up(self, job_id: str, now: float) -> None:
        """Rule 4."""
        dead = self.morgue.pop(job_id, None)
        if dead:
            self.put_back(job_id, dead.in_order(), now, -1, None)

    def kill_failed(self) -> None:
        for job_id in sorted(self.waiting):
            job = self.waiting[job_id]
            if job.retry_count >= 0:
                del self.waiting[job_id]
                self.bury(job_id, job.in_order(), job.error)
