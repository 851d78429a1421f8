"""Searches shards for what is kept of ids that have no waiting job, and belong to another shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.resharding import Migration
from celery_lowkiq.store.jobs.scan import BEGINNING, Position, scan_call, scanned
from celery_lowkiq.store.scripts.client import Client, raise_refused
from celery_lowkiq.store.scripts.keys import SHARD_KEYS, shard_keys
from celery_lowkiq.store.scripts.records import parse_id
from celery_lowkiq.store.scripts.script import ScriptCall

#: Keys that may have entries of an id without a job in ``moving``. All else belongs to one of these.
SEARCHED = (
    *("due", "due_prioritized", "due_paused", "paused", "dead_ids", "calls"),
    *("done_scores", "buckets", "tries", "crash_marks"),
)
#: Entries of one step.
STEP = 500


@dataclass
class _Place:
    """How far the search of a shard has come."""

    key: int = 0
    position: Position = BEGINNING


class StraySearch:
    """A search of each source, in steps.

    It begins after the waiting jobs have left, so it finds all: only what is in processing can come back to
    where it has been, and that is known.
    """

    def __init__(self) -> None:
        #: Found ids, by shard, that may not have left yet.
        self.strays: dict[int, dict[str, None]] = defaultdict(dict)
        self._places: dict[int, _Place] = {}

    def is_done(self, index: int) -> bool:
        """Whether a shard was searched, and all that was found has left it."""
        place = self._places.get(index)
        return place is not None and place.key == len(SEARCHED) and not self.strays[index]

    def forget(self, index: int, ids: Iterable[str]) -> None:
        """Note that nothing is left of ids in a shard."""
        for job_id in ids:
            self.strays[index].pop(job_id, None)

    def go_on(self, client: Client, queue: str, migration: Migration, shards: Sequence[int]) -> bool:
        """Search the next part of each shard that has not been searched. Return whether there was one."""
        self._skip_empty(client, [ShardRef(queue, n) for n in shards if n not in self._places])
        left = [index for index in shards if self._places[index].key < len(SEARCHED)]
        calls = [self._call(ShardRef(queue, index)) for index in left]
        replies = raise_refused(client.calls(calls)) if calls else []
        for index, reply in zip(left, replies, strict=True):
            place = self._places[index]
            place.position, found = scanned(reply)
            for member, _ in found:
                job_id = parse_id(member.partition(b"\0")[0])
                if migration.leaves(index, job_id):
                    self.strays[index][job_id] = None
            if not place.position.cursor:
                place.key += 1
        return bool(left)

    def _skip_empty(self, client: Client, shards: Sequence[ShardRef]) -> None:
        commands = [("EXISTS", *(shard_keys(shard)[name] for name in SEARCHED)) for shard in shards]
        replies = client.commands(commands)
        for shard, count in zip(shards, replies, strict=True):
            self._places[shard.index] = _Place(0 if count else len(SEARCHED))

    def _call(self, shard: ShardRef) -> ScriptCall:
        place = self._places[shard.index]
        name = SEARCHED[place.key]
        command = "ZSCAN" if SHARD_KEYS[name] == "zset" else "HSCAN"
        return scan_call(shard_keys(shard)[name], place.position, STEP, command)
