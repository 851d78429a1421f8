"""The shards of a queue that moves, as a mover reads and changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.resharding import Export, Migration, ShardMoves, SilentOwners
from celery_lowkiq.store.scripts.client import Client, raise_refused
from celery_lowkiq.store.scripts.keys import announcement, shard_keys, shard_of_key
from celery_lowkiq.store.scripts.records import id_bytes, parse_id
from celery_lowkiq.store.scripts.script import ScriptCall, load

#: Limits of a transfer: payloads and call records, and their bytes.
TRANSFER_PAYLOADS = 1000
TRANSFER_BYTES = 256 * 1024


class MovingShards:
    """Makes and sends the scripts of a migration."""

    def __init__(
        self, client: Client, queue: QueueSpec, lease_seconds: float, now: Callable[[], float]
    ) -> None:
        self._client = client
        self._queue = queue
        self._owners = SilentOwners(lease_seconds)
        self._now = now

    def ref(self, index: int) -> ShardRef:
        """Return the name of a shard."""
        return ShardRef(self._queue.name, index)

    def call(self, name: str, index: int, rest: Sequence[bytes] = (), /, **args: Any) -> ScriptCall:
        """Return the call of a script for a shard."""
        return load(name).call(shard_keys(self.ref(index)), rest, **args)

    def send(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Send scripts. Raises StoreError when one is refused."""
        if not calls:
            return []
        return raise_refused(self._client.calls(calls))

    def send_here(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """As :meth:`send`; on a cluster, None from a master that is away."""
        if not calls:
            return []
        replies = self._client.but_away(self._client.calls(calls))
        answers = [None if isinstance(reply, StoreUnavailable) else reply for reply in replies]
        silent = [call.keys[0] for call, answer in zip(calls, answers, strict=True) if answer is None]
        self._owners.doubted(shard.index for shard in map(shard_of_key, silent) if shard is not None)
        return answers

    # -- what shards have to do

    def read(self, limits: Mapping[int, int]) -> dict[int, ShardMoves]:
        """Read what shards have to do; ``limits``: by shard, how many ids that wait to be sorted.

        Leaves out shards whose masters are away, unless that is all.
        """
        calls = [self.call("read_moves", index, limit=limit) for index, limit in limits.items()]
        replies = dict(zip(limits, self.send_here(calls), strict=True))
        if not any(replies.values()):
            raise StoreUnavailable("Redis is not available: the masters of these shards are away")
        return {index: self._moves(index, reply) for index, reply in replies.items() if reply is not None}

    def doubt(self) -> None:
        """Watch the owners of all shards from anew: Redis does not answer."""
        self._owners.doubted()

    def _moves(self, index: int, reply: list[Any]) -> ShardMoves:
        route, gen, moving, waiting, inflight, pending, counts, staying, owner = reply
        owner, now = parse_id(owner), self._now()
        self._owners.observed(index, owner, now)
        return ShardMoves(
            route.decode(),
            int(gen),
            tuple(map(parse_id, moving)),
            waiting,
            tuple(map(parse_id, inflight)),
            tuple(map(int, pending)),
            counts,
            bool(staying),
            "" if self._owners.silent(index, now) else owner,
        )

    def received(self, exports: Sequence[Export]) -> dict[Export, int]:
        """Read the numbers of the last transfers by source and shard, but of masters that are away."""
        keys = [shard_keys(self.ref(export.shard))["outbox"] for export in exports]
        commands = [
            ("HGET", key, f"received:{export.source}") for key, export in zip(keys, exports, strict=True)
        ]
        replies = self._client.command_answers(commands)
        found = zip(exports, replies, strict=True)
        return {export: int(reply or 0) for export, reply in found if not isinstance(reply, StoreUnavailable)}

    # -- what moves

    def export(self, migration: Migration, export: Export, number: int) -> ScriptCall:
        """Return the call that takes ids from their source; ``number``: of the last transfer received."""
        return self.call(
            "export",
            export.source,
            list(map(id_bytes, export.ids)),
            gen=migration.gen,
            shard=export.shard,
            number=number,
            counts=int(export.counts),
            limit=TRANSFER_PAYLOADS,
            max_bytes=TRANSFER_BYTES,
            silent=self._owners.silent(export.source, self._now()),
        )

    def import_jobs(self, migration: Migration, export: Export, number: int, data: bytes) -> ScriptCall:
        """Return the call that brings a transfer to its shard."""
        queue = replace(self._queue, shards=migration.layout.shards)
        return self.call(
            "import_jobs",
            export.shard,
            merge=queue.merge.value,
            policy=queue.policy,
            gen=migration.gen,
            shard=export.source,
            number=number,
            data=data,
            **announcement(self.ref(export.shard)),
        )

    def release(self, script: str, migration: Migration, index: int, ids: Sequence[str]) -> ScriptCall:
        """Return the call of ``relay`` or ``stay``, which lets claims take ids of a shard."""
        names = list(map(id_bytes, ids))
        return self.call(script, index, names, gen=migration.gen, **announcement(self.ref(index)))
