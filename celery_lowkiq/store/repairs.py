"""Repairs of keys that were lost."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from celery_lowkiq.rules.basics import store_logger as logger
from celery_lowkiq.rules.basics import try_start
from celery_lowkiq.rules.errors import LowkiqError, ShardRepairing
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.repairs import Condition, Registered, Repaired, can_restore_meta
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import (
    MORGUE_KEYS,
    SHARD_KEYS,
    WAITING_KEYS,
    KeyAliases,
    announcement,
    shard_keys,
)
from celery_lowkiq.store.records import parse_id
from celery_lowkiq.store.script import PROBES, Value, load

# Repair of shards that have lost keys: each key is rewritten from other keys with the same information.
#
# Every step is a script over a bounded part; it can be repeated, and can run beside pushes, claims and
# settles. Damage that a claim or an acquire detects is repaired automatically; an operator can repair a
# whole queue.

#: Entries read by one script, and shards read in one round trip.
STEP = 250
SHARDS = 256
#: Seconds between repairs of inconsistencies that block no claim.
MINOR_REPAIR_INTERVAL = 60.0
#: How often payloads are counted when calls have merged meanwhile; then the count may miss some of these.
COUNTS = 3
#: Ids per key that are checked against the number of shards.
SAMPLE = 128
#: Sorted sets of ids that lie in a shard.
INDEXES = ("due", "due_prioritized", "due_paused", "moving", "claimed", "dead", "paused")
#: Parts of the scripts, in the order in which they run.
NUMBERED_PARTS = (
    "processing",
    "jobs",
    "spill_order",
    "calls",
    "done_scores",
    "dead_jobs",
    "dead_spill_order",
)
WAITING = ("jobs", "due", "due_prioritized", "due_paused", "moving", "by_priority", "failed", "errors")
MORGUE = ("dead_jobs", "dead", "dead_ids", "dead_errors")


class Repairs:
    """Reads the condition of shards and repairs them. Every method may raise StoreError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._next_mend: dict[ShardRef, float] = {}

    # -- reads

    def conditions(self, shards: Sequence[ShardRef]) -> list[Condition]:
        """Return the condition of each shard, in one round trip per 256 shards."""
        script, conditions = load("key_counts"), []
        for start in range(0, len(shards), SHARDS):
            part = shards[start : start + SHARDS]
            probes = [PROBES[SHARD_KEYS[name]] for name in script.keys]
            replies = self._client.all([script.call(shard_keys(shard), probes) for shard in part])
            conditions += [
                _condition(shard, script.keys, reply) for shard, reply in zip(part, replies, strict=True)
            ]
        return conditions

    # -- automatic repairs

    def rewrite_meta(self, queue: QueueSpec, shard: ShardRef, registered: Registered) -> bool:
        """Rewrite meta of a shard when its number of shards is missing and all else is consistent.

        Return whether meta has the number now.
        """
        stored = self.lost_count(queue, shard, registered)
        if stored is None:
            return False
        # First: a shard without meta is repaired again when this stops.
        self._count_payloads(shard)
        call = load("repair_meta").call(
            shard_keys(shard),
            known=stored,
            shards=registered.layout.route,
            pause=registered.pause,
            since=registered.since,
            **self._largest_numbers(shard),
        )
        if self._client.call(call):
            _log(Repaired(shard, meta=True))
        return True

    def lost_count(self, queue: QueueSpec, shard: ShardRef, registered: Registered) -> bytes | None:
        """Return what meta has in place of the number of shards; None when meta must not be rewritten."""
        keys = shard_keys(shard)
        lists = [("ZRANGE", keys[name], 0, SAMPLE - 1) for name in INDEXES]
        stored, *ids = self._client.commands([("HGET", keys["meta"], "shards"), *lists])
        stored = stored or b""
        names = [parse_id(job_id) for some in ids for job_id in some]
        allowed = can_restore_meta(shard, stored.decode("latin-1"), registered.layout, names)
        return stored if allowed else None

    def clear_meta(self, shard: ShardRef) -> bool:
        """Delete meta if it has the wrong type. Return whether it was deleted."""
        cleared = self._clear(shard, ["meta"])
        _log(Repaired(shard, cleared=tuple(cleared)))
        return bool(cleared)

    def mend(self, queue: QueueSpec, shard: ShardRef) -> Repaired:
        """Make the keys of waiting jobs and of jobs in processing consistent, and log the repair."""
        (lease,) = self._client.commands([("HMGET", shard_keys(shard)["lease"], "owner", "epoch")])
        owner, epoch = (value or b"" for value in lease)
        repaired = self._waiting(queue, self._processing(Repaired(shard), owner, epoch))
        self._finish(shard)
        _log(repaired)
        return repaired

    def repair_minor(self, queue: QueueSpec, shard: ShardRef) -> None:
        """Repair inconsistencies that block no claim, at most once a minute: foreign data may remain."""
        now = time.monotonic()
        if now >= self._next_mend.get(shard, now):
            self._next_mend[shard] = now + MINOR_REPAIR_INTERVAL
            self.mend(queue, shard)

    def _count_payloads(self, shard: ShardRef, accept: bool = False) -> None:
        """Count the payloads of waiting jobs (``lib/meta.lua``); ``accept`` that keys of long jobs differ."""
        keys, script = shard_keys(shard), load("finish_repair")
        for attempt in range(COUNTS):
            extras: dict[bytes, int] = {}
            known: bytes | None = None
            for _, _, _, _, stored, *found in self._steps("largest_numbers", keys, part="jobs"):
                known = stored if known is None else known
                extras |= zip(found[::2], found[1::2], strict=True)
            expected = b"" if attempt == COUNTS - 1 else known or b""
            extra = sum(extras.values())
            if self._client.call(script.call(keys, extra=extra, known=expected, accept=int(accept))):
                return

    # -- repairs by an operator

    def repair(self, queue: QueueSpec, condition: Condition, registered: Registered) -> Repaired:
        """Repair all keys of a shard, and log the repair.

        Lost jobs in processing are dropped only when the shard has no owner.
        """
        shard = condition.shard
        cleared = self._clear(shard, condition.wrong)
        # Meta first: the other steps use its numbers.
        missing = condition.used and not condition.shards
        repaired = Repaired(shard, cleared=tuple(cleared))
        if missing or "meta" in cleared:
            repaired = replace(repaired, meta=self.rewrite_meta(queue, shard, registered))
        (epoch,) = self._client.commands([("HGET", shard_keys(shard)["lease"], "epoch")])
        repaired = self._processing(repaired, b"", epoch or b"")
        repaired = self._morgue(queue, self._waiting(queue, repaired))
        self._finish(shard)
        _log(replace(repaired, meta=False))
        return repaired

    # -- steps

    def _clear(self, shard: ShardRef, names: Any) -> list[str]:
        """Delete keys of the wrong type and return their names."""
        keys = shard_keys(shard)
        return [
            name
            for name in names
            if self._client.call(
                load("delete_wrong_type").call({"index": keys[name]}, probe=PROBES[SHARD_KEYS[name]])
            )
        ]

    def _largest_numbers(self, shard: ShardRef) -> dict[str, Any]:
        # Processing comes first in NUMBERED_PARTS: its jobs may return to waiting, but no job is claimed.
        score, numbers = 0.0, [(0, 0, 0)]
        for part in NUMBERED_PARTS:
            for step in self._steps("largest_numbers", shard_keys(shard), part=part):
                part_score, back, front, call = step[:4]
                score = max(score, float(part_score or 0))
                numbers.append((int(back), int(front), int(call)))
        backs, fronts, calls = zip(*numbers, strict=True)
        micros = int(score * 1_000_000 + 0.5)
        return {"score": micros, "back": max(backs), "front": min(fronts), "call": max(calls)}

    def _processing(self, repaired: Repaired, owner: bytes, epoch: bytes) -> Repaired:
        keys = shard_keys(repaired.shard)
        mended, lost = self._client.call(load("repair_processing").call(keys, owner=owner, epoch=epoch))
        return repaired.plus(mended=mended, lost_processing=lost)

    def _waiting(self, queue: QueueSpec, repaired: Repaired) -> Repaired:
        keys = shard_keys(repaired.shard)
        repaired = self._payload_sets(queue, repaired, KeyAliases(keys, WAITING_KEYS))
        args = {"default_priority": queue.policies.priority or 0, **announcement(repaired.shard)}
        for part in WAITING:
            for undated, mended, lost in self._steps("repair_waiting", keys, part=part, **args):
                repaired = repaired.plus(undated=undated, mended=mended, lost_waiting=lost)
        return repaired

    def _finish(self, shard: ShardRef) -> None:
        # The remaining difference of `spill` and `spill_order` belongs to no job and must not block claims.
        self._count_payloads(shard, accept=True)

    def _morgue(self, queue: QueueSpec, repaired: Repaired) -> Repaired:
        keys = shard_keys(repaired.shard)
        repaired = self._payload_sets(queue, repaired, KeyAliases(keys, MORGUE_KEYS))
        for part in MORGUE:
            for mended, lost in self._steps("repair_morgue", keys, part=part):
                repaired = repaired.plus(mended=mended, lost_dead=lost)
        return repaired

    def _payload_sets(self, queue: QueueSpec, repaired: Repaired, keys: KeyAliases) -> Repaired:
        for part in ("spill", "spill_order"):
            for (mended,) in self._steps("repair_payload_sets", keys, merge=queue.merge.value, part=part):
                repaired = repaired.plus(mended=mended)
        return repaired

    def _steps(self, name: str, keys: Any, **args: Any) -> Iterator[list[Any]]:
        """Run a script over a whole key, and yield its replies without the cursor.

        Once more, when the key has moved to another server meanwhile, which does not know the cursors.
        """
        cursor: Value = 0
        server = self._server(keys)
        while True:
            cursor, *values = self._client.call(load(name).call(keys, cursor=cursor, limit=STEP, **args))
            yield values
            if int(cursor) == 0:
                before, server = server, self._server(keys)
                if server == before:
                    return

    def _server(self, keys: Any) -> bytes:
        name: bytes
        name, *_ = self._client.call(load("read_server").call(keys))
        return name


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


def _log(repaired: Repaired) -> None:
    if repaired.text:
        log = logger.error if repaired.lost else logger.warning
        log("shard %s was repaired: %s", repaired.shard, repaired.text)


# Repairs in a background thread, so that a long repair does not block the renewal of leases.


class BackgroundRepairs(Repairs):
    """Starts a repair and raises ShardRepairing at once; shards are repaired one after the other."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._todo: queue.SimpleQueue[tuple[ShardRef, Callable[[], object]]] = queue.SimpleQueue()
        self._in_progress: set[ShardRef] = set()

    def rewrite_meta(self, queue: QueueSpec, shard: ShardRef, registered: Registered) -> bool:
        """Return False for a shard that cannot be restored, else raise ShardRepairing."""
        if self.lost_count(queue, shard, registered) is None:
            return False
        raise self._begin(shard, partial(super().rewrite_meta, queue, shard, registered))

    def mend(self, queue: QueueSpec, shard: ShardRef) -> Repaired:
        """Start the repair. Raises ShardRepairing."""
        raise self._begin(shard, partial(super().mend, queue, shard))

    def _begin(self, shard: ShardRef, repair: Callable[[], object]) -> ShardRepairing:
        with self._lock:
            if shard not in self._in_progress:
                self._in_progress.add(shard)
                self._todo.put((shard, repair))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._main, name="lowkiq-repairs", daemon=True)
                if error := try_start(self._thread):
                    # The next look at a damaged shard tries again.
                    logger.error("the repair of shard %s waits: %s", shard, error)
        return ShardRepairing(shard.queue, shard.index, "some of its keys were lost and are being repaired")

    def _main(self) -> None:
        while True:
            shard, repair = self._todo.get()
            try:
                repair()
            except LowkiqError as error:
                logger.warning("the repair of shard %s was interrupted and will be retried: %s", shard, error)
            except Exception:
                logger.exception("the repair of shard %s failed", shard)
            finally:
                with self._lock:
                    self._in_progress.discard(shard)
