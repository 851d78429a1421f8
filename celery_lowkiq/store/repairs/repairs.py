"""Repairs shards that have lost keys: each key is written again from those that tell the same.

Every step is a script that looks at a bounded part; to repeat it is safe, and it may run beside pushes,
claims and settles. What a claim or an acquire finds is repaired by itself; an operator may have a whole queue
repaired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.repairs import Condition, Damage, Registered, Repaired, damages, may_restore
from celery_lowkiq.store.inspect.job_reader import MORGUE_KEYS, Renamed
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import SHARD_KEYS, channel, shard_keys
from celery_lowkiq.store.scripts.records import parse_id
from celery_lowkiq.store.scripts.script import PROBES, Value, load

logger = logging.getLogger("celery_lowkiq.store")

#: Entries that one script looks at, and shards that one round trip looks at.
STEP = 250
SHARDS = 256
#: Keys of failed jobs that do not agree are looked at this often, in s.
FRAYED_AGAIN = 60.0
#: Ids that tell in which number of shards they lie.
SAMPLE = 128
SAMPLED = ("due", "ranked", "held", "claimed", "dead", "paused")
GAUGED = ("processing", "jobs", "order", "calls", "peaks", "dead_jobs", "dead_order")
WAITING = ("jobs", "due", "ranked", "held", "classes", "failed", "errors")
MORGUE = ("dead_jobs", "dead", "dead_ids", "dead_errors")


class Repairs:
    """Looks at shards, and repairs them. Every method may raise StoreError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._next_mend: dict[ShardRef, float] = {}

    # -- looks

    def conditions(self, shards: Sequence[ShardRef]) -> list[Condition]:
        """How the keys of the shards are, in a round trip for each 256."""
        script, found = load("condition"), []
        for start in range(0, len(shards), SHARDS):
            part = shards[start : start + SHARDS]
            probes = [PROBES[SHARD_KEYS[name]] for name in script.keys]
            replies = self._client.all([script.call(shard_keys(shard), probes) for shard in part])
            found += [
                _condition(shard, script.keys, reply) for shard, reply in zip(part, replies, strict=True)
            ]
        return found

    def damages(self, queue: QueueSpec, registered: int) -> list[Damage]:
        """What is wrong with the shards of a queue."""
        return [
            damage for found in self.conditions(queue.shard_refs()) for damage in damages(found, registered)
        ]

    # -- what is repaired by itself

    def restore_meta(self, queue: QueueSpec, shard: ShardRef, known: Registered) -> bool:
        """Write meta of a shard again, when it does not say how many shards there are, and all else agrees.

        Returns whether it says so now.
        """
        if not self.is_restorable(queue, shard, known):
            return False
        keys = shard_keys(shard)
        (says,) = self._client.commands([("HGET", keys["meta"], "shards")])
        call = load("repair_meta").call(
            keys,
            known=says or b"",
            shards=queue.shards,
            pause=known.pause,
            since=known.since,
            **self._gauge(shard),
        )
        if self._client.call(call):
            _tell(Repaired(shard, meta=True))
        return True

    def is_restorable(self, queue: QueueSpec, shard: ShardRef, known: Registered) -> bool:
        """Whether meta does not say how many shards there are, and all else agrees."""
        keys = shard_keys(shard)
        (says,) = self._client.commands([("HGET", keys["meta"], "shards")])
        ids = self._client.commands([("ZRANGE", keys[name], 0, SAMPLE - 1) for name in SAMPLED])
        names = [parse_id(job_id) for some in ids for job_id in some]
        text = (says or b"").decode("latin-1")
        return may_restore(shard, text, known.shards, queue.shards, names)

    def clear_meta(self, shard: ShardRef) -> bool:
        """Delete meta when it is of another type; whether it was."""
        cleared = self._clear(shard, ["meta"])
        _tell(Repaired(shard, cleared=tuple(cleared)))
        return bool(cleared)

    def mend(self, queue: QueueSpec, shard: ShardRef) -> Repaired:
        """Make the keys of waiting jobs and of those in processing agree. Log what was done."""
        (lease,) = self._client.commands([("HMGET", shard_keys(shard)["lease"], "owner", "epoch")])
        owner, epoch = (value or b"" for value in lease)
        repaired = self._waiting(queue, self._processing(Repaired(shard), owner, epoch or b"0"))
        self._accept(shard)
        _tell(repaired)
        return repaired

    def mend_frayed(self, queue: QueueSpec, shard: ShardRef) -> None:
        """The same for what is in the way of no claim, once in a while: what was planted there may stay."""
        now = time.monotonic()
        if now >= self._next_mend.get(shard, now):
            self._next_mend[shard] = now + FRAYED_AGAIN
            self.mend(queue, shard)

    # -- what an operator asks for

    def repair(self, queue: QueueSpec, found: Condition, known: Registered) -> Repaired:
        """Repair all of a shard. What is in processing is given up only when nobody owns the shard. Log what
        was done.
        """
        shard = found.shard
        cleared = self._clear(shard, found.wrong)
        # Meta first: it has the numbers that the others go on from.
        missing = found.used and not found.shards
        repaired = Repaired(shard, cleared=tuple(cleared))
        if missing or "meta" in cleared:
            repaired = replace(repaired, meta=self.restore_meta(queue, shard, known))
        (epoch,) = self._client.commands([("HGET", shard_keys(shard)["lease"], "epoch")])
        repaired = self._processing(repaired, b"", epoch or b"0")
        repaired = self._morgue(queue, self._waiting(queue, repaired))
        self._accept(shard)
        _tell(replace(repaired, meta=False))
        return repaired

    # -- steps

    def _clear(self, shard: ShardRef, names: Any) -> list[str]:
        """Names of the keys that were of another type."""
        keys = shard_keys(shard)
        return [
            name
            for name in names
            if self._client.call(load("clear").call({"index": keys[name]}, probe=PROBES[SHARD_KEYS[name]]))
        ]

    def _gauge(self, shard: ShardRef) -> dict[str, Any]:
        """What is in processing is looked at first: it may come to wait meanwhile, but nothing is claimed."""
        score, numbers = 0.0, [(0, 0, 0)]
        for part in GAUGED:
            for found_score, *found in self._steps("gauge", shard_keys(shard), part=part):
                score = max(score, float(found_score or 0))
                numbers.append((int(found[0]), int(found[1]), int(found[2])))
        backs, fronts, calls = zip(*numbers, strict=True)
        micros = int(score * 1_000_000 + 0.5)
        return {"score": micros, "back": max(backs), "front": min(fronts), "call": max(calls)}

    def _processing(self, repaired: Repaired, owner: bytes, epoch: bytes) -> Repaired:
        keys = shard_keys(repaired.shard)
        mended, lost = self._client.call(load("repair_processing").call(keys, owner=owner, epoch=epoch))
        return replace(
            repaired, mended=repaired.mended + mended, lost_processing=repaired.lost_processing + lost
        )

    def _waiting(self, queue: QueueSpec, repaired: Repaired) -> Repaired:
        shard = repaired.shard
        keys = shard_keys(shard)
        repaired = self._bags(queue, repaired, Renamed(keys, {"records": "jobs"}))
        announced: dict[str, Any] = {"channel": channel(queue.name), "index": shard.index}
        rank = queue.policies.priority or 0
        for part in WAITING:
            for undated, mended, lost in self._steps(
                "repair_waiting", keys, rank=rank, part=part, **announced
            ):
                repaired = replace(
                    repaired,
                    undated=repaired.undated + undated,
                    mended=repaired.mended + mended,
                    lost_waiting=repaired.lost_waiting + lost,
                )
        return repaired

    def _accept(self, shard: ShardRef) -> None:
        """What `spill` and `order` differ by now is of no job: it is not to be in the way of claims."""
        self._client.call(load("repair_accept").call(shard_keys(shard)))

    def _morgue(self, queue: QueueSpec, repaired: Repaired) -> Repaired:
        keys = shard_keys(repaired.shard)
        repaired = self._bags(queue, repaired, Renamed(keys, MORGUE_KEYS))
        for part in MORGUE:
            for mended, lost in self._steps("repair_morgue", keys, part=part):
                repaired = replace(
                    repaired, mended=repaired.mended + mended, lost_dead=repaired.lost_dead + lost
                )
        return repaired

    def _bags(self, queue: QueueSpec, repaired: Repaired, keys: Renamed) -> Repaired:
        for part in ("spill", "order"):
            for (mended,) in self._steps("repair_bags", keys, merge=queue.merge.value, part=part):
                repaired = replace(repaired, mended=repaired.mended + mended)
        return repaired

    def _steps(self, name: str, keys: Any, **args: Any) -> Iterator[list[Any]]:
        """Replies of a script that goes through a key, without the cursor."""
        cursor: Value = 0
        while True:
            cursor, *found = self._client.call(load(name).call(keys, cursor=cursor, limit=STEP, **args))
            yield found
            if int(cursor) == 0:
                return


def _condition(shard: ShardRef, names: Sequence[str], reply: list[Any]) -> Condition:
    shards, owned, urgent, wrong, counts = reply
    return Condition(
        shard=shard,
        shards=shards.decode("latin-1"),
        owned=bool(owned),
        urgent=urgent,
        wrong=tuple(names[position - 1] for position in wrong),
        counts=dict(zip(names, counts, strict=True)),
    )


def _tell(repaired: Repaired) -> None:
    if repaired.text:
        log = logger.error if repaired.lost else logger.warning
        log("shard %s was repaired: %s", repaired.shard, repaired.text)
