"""Writes what a dump tells, in bounded steps, each line once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_lowkiq.rules.dumps import Entry, Header, State
from celery_lowkiq.rules.models import QueueSpec, ShardRef, shard_of
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.keys import channel, shard_keys
from celery_lowkiq.store.scripts.records import id_bytes, number_text
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

#: As ``load.lua`` calls them.
_KINDS = {State.WAITING: "waiting", State.PROCESSING: "waiting", State.DEAD: "dead", State.CALLS: "calls"}


class Loading:
    """Takes the lines of one dump into a queue."""

    def __init__(self, store: RedisStore, queue: QueueSpec, header: Header) -> None:
        self._store = store
        self._queue = queue
        self._header = header

    def load(self, lines: Sequence[tuple[int, Entry]]) -> int:
        """Load numbered lines, one script a shard; how many had not been loaded before. The same lines again
        change nothing for a week, also when they run meanwhile. Raises ShardCountMismatch, StoreError.
        """
        by_shard: dict[ShardRef, list[tuple[int, Entry]]] = {}
        for number, entry in lines:
            shard = ShardRef(self._queue.name, shard_of(entry.id, self._queue.shards))
            by_shard.setdefault(shard, []).append((number, entry))
        calls = [(shard, self._call(shard, part)) for shard, part in by_shard.items()]
        return sum(self._store.admitted(self._queue, calls))

    def _call(self, shard: ShardRef, lines: Sequence[tuple[int, Entry]]) -> ScriptCall:
        rest = [value for number, entry in lines for value in _values(number, entry)]
        return load("load").call(
            shard_keys(shard),
            rest,
            shards=self._queue.shards,
            merge=self._queue.merge.value,
            policy=self._queue.policy,
            sender=f"load-{self._header.dump}",
            channel=channel(self._queue.name),
            index=shard.index,
            last_score=self._header.last_score,
        )


def _values(number: int, entry: Entry) -> Iterator[Value]:
    yield from (number, _KINDS[entry.state], id_bytes(entry.id), number_text(entry.when), entry.retry_count)
    yield from (entry.error or b"", entry.priority, len(entry.payloads) + len(entry.calls))
    for payload in entry.payloads:
        yield from (number_text(payload.score), payload.data, payload.recorded.value)
    for call in entry.calls:
        yield from (call.digest, call.record, "")
