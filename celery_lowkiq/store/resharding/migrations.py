"""The state of a queue's migration in its own key: begins one, and begins its phases."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from celery_lowkiq.rules.errors import NotAbortable
from celery_lowkiq.rules.layout import Layout
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.resharding import Migration, MigrationState, Phase, ShardProgress
from celery_lowkiq.store.jobs.registry import Registry, check_format, parse_layout, restart_call
from celery_lowkiq.store.scripts.client import Client, raise_refused
from celery_lowkiq.store.scripts.keys import queue_key, shard_keys
from celery_lowkiq.store.scripts.records import parse_id
from celery_lowkiq.store.scripts.replies import reads_replies
from celery_lowkiq.store.scripts.script import ScriptCall, load

#: Fields of a queue's key: when its migration began, was paused, and was aborted.
TIMES = ("migration_began", "migration_paused", "migration_aborted")
#: Shards that are counted in one round trip.
COUNTED_SHARDS = 512
#: Jobs of all shards by which those are estimated that will leave their shards.
SAMPLED_JOBS = 5000
#: Parts of a shard's jobs that these are of.
SLICES = 16


class StoredMigration(NamedTuple):
    """A migration, and the queue's last pause, which shards follow that are added."""

    migration: Migration
    pause: str
    since: str
    began_at: float | None
    paused_since: float | None
    aborted_at: float | None

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused it, and jobs have not all moved."""
        return self.paused_since is not None and self.migration.phase is not Phase.SEAL


@reads_replies
class Migrations:
    """Migrations of one queue. Methods raise FormatMismatch, StoreError."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._keys = {"queue": queue_key(queue)}

    def begin(self, shards: int) -> bool:
        """Begin the migration to another number of shards. False when one is going on, or has just begun.

        Raises StoreUnavailable, and begins none, while a master of a former or a new shard is away.
        """
        self.catch_up(shards)
        self._check_masters(shards)
        return self.begin_caught_up(shards)

    def catch_up(self, shards: int) -> None:
        """Let a queue's own key that a failover has taken back have the last migration of its shards.

        Otherwise, the next one, to ``shards``, would have its number, and shards would take both for one.
        """
        (stored,) = self._client.commands([("HGET", self._keys["queue"], "shards")])
        if (layout := parse_layout(stored)) is not None:
            registry = Registry(self._client)
            registry.registered(QueueSpec(self._queue, shards=layout.shards, former_shards=layout.former))
            if shards > layout.count:
                # Shards that the queue has forgotten may have been in it.
                registry.registered(QueueSpec(self._queue, shards=shards))

    def _check_masters(self, shards: int) -> None:
        (stored,) = self._client.commands([("HGET", self._keys["queue"], "shards")])
        if (layout := parse_layout(stored)) is not None:
            refs = QueueSpec(self._queue, shards=max(shards, layout.count)).shard_refs()
            self._client.commands([("HGET", shard_keys(shard)["meta"], "shards") for shard in refs])

    def begin_caught_up(self, shards: int) -> bool:
        """Begin as :meth:`begin` does, after :meth:`catch_up`, whether masters are there or not."""
        fields = ("HMGET", self._keys["queue"], "gen", "shards")
        ((gen, former),) = self._client.commands([fields])
        call = load("begin_migration").call(self._keys, gen=gen or 0, shards=former or "", wanted=shards)
        return self._begin_by(call)

    def stored(self) -> StoredMigration | None:
        """Return the migration that is going on, as it is stored; None without one."""
        fields = ("shards", "format", "gen", "phase", "migration", "pause", "paused", *TIMES)
        (stored,) = self._client.commands([("HMGET", self._keys["queue"], *fields)])
        shards, stored_format, *texts = ((value or b"").decode() for value in stored)
        if shards or stored_format:
            check_format(self._queue, stored_format)
        gen, phase, route, pause, since, *times = texts
        layout = Layout.parse(route)
        if layout is None or phase in ("", Phase.IDLE.value):
            return None
        migration = Migration(int(gen), Phase(phase), layout)
        return StoredMigration(
            migration, pause or "0", since, *(float(time) if time else None for time in times)
        )

    def pause(self, wanted: bool) -> bool | None:
        """Pause or resume the migration. Return whether it was not so before; None without one to pause."""
        changed = self._client.call(load("pause_migration").call(self._keys, wanted=int(wanted)))
        return None if changed < 0 else bool(changed)

    def abort(self) -> int | None:
        """Go back to the former number of shards. Return it; None without a migration to abort.

        Raises NotAbortable when the migration may be the way back of another one.
        """
        former = int(self._client.call(load("abort_migration").call(self._keys)) or 0)
        if former < 0:
            raise NotAbortable(self._queue, -former)
        return former or None

    def read(self) -> Migration | None:
        """Return the migration that is going on; None without one."""
        stored = self.stored()
        return stored and stored.migration

    def state(self) -> MigrationState | None:
        """Return the migration that is going on, with the counts of its shards; None without one."""
        stored = self.stored()
        if stored is None:
            return None
        migration = stored.migration
        refs = [ShardRef(self._queue, index) for index in migration.shards]
        replies: list[list[Any]] = []
        for start in range(0, len(refs), COUNTED_SHARDS):
            page = refs[start : start + COUNTED_SHARDS]
            calls = [load("read_progress").call(shard_keys(shard)) for shard in page]
            replies += self._client.all(calls)
        if stored.is_paused and migration.phase is Phase.MOVE:
            staying = self._staying(migration, refs, replies)
            replies = [[*reply, count] for reply, count in zip(replies, staying, strict=True)]
        return MigrationState(
            queue=self._queue,
            gen=migration.gen,
            phase=migration.phase,
            former=migration.former,
            shards=migration.layout.shards,
            began_at=stored.began_at,
            paused_since=stored.paused_since if stored.is_paused else None,
            aborted_at=stored.aborted_at,
            progress=tuple(
                ShardProgress(shard.index, route.decode(), *counts)
                for shard, (route, *counts) in zip(refs, replies, strict=True)
            ),
        )

    def _staying(self, migration: Migration, refs: list[ShardRef], counts: list[list[Any]]) -> list[int]:
        """Estimate how many jobs of each shard will leave it after a pause, by slices of those that are due
        now or later: the first ones alone are the oldest, of which more leave than of calls that came since.
        """
        claimable = [waiting - unsorted for _, waiting, unsorted, *_ in counts]
        commands = [
            ("ZRANGE", shard_keys(shard)["due"], start, start + size - 1)
            for shard, count in zip(refs, claimable, strict=True)
            for start, size in slices(count, SAMPLED_JOBS // len(refs))
        ]
        samples = iter(self._client.commands(commands))
        found = []
        for shard, count in zip(refs, claimable, strict=True):
            ids = [parse_id(job_id) for _ in range(SLICES) for job_id in next(samples)]
            leaving = sum(migration.leaves(shard.index, job_id) for job_id in ids)
            found.append(round(count * leaving / max(1, len(ids))))
        return found

    def restart(self, gen: int, phase: Phase) -> bool:
        """Begin migration ``gen``, in this phase, once more under the next number: a failover has
        lost what it did in a shard, and sealed shards take no transfer.
        """
        return self._begin_by(restart_call(self._queue, gen, phase))

    def begin_phase(self, migration: Migration, phase: Phase) -> bool:
        """Begin the next phase of a migration. False when another mover was first."""
        layout = migration.layout
        route = layout.route if phase in (Phase.FLIP, Phase.MOVE) else str(layout.shards)
        call = load("set_phase").call(
            self._keys,
            gen=migration.gen,
            phase=migration.phase.value,
            next=phase.value,
            shards=route,
        )
        return self._begin_by(call)

    def _begin_by(self, call: ScriptCall) -> bool:
        # A worker on a cluster goes on with other masters: a missing right is a StoreUnavailable there.
        replies = self._client.but_away(self._client.calls([call]))
        (begun,) = raise_refused(replies)
        return bool(begun == 1)


def slices(count: int, sampled: int) -> list[tuple[int, int]]:
    """Return where each of SLICES equal parts of ``count`` jobs begins, and how many of it are a sample."""
    starts = [count * number // SLICES for number in range(SLICES + 1)]
    most = max(1, sampled // SLICES)
    return [(start, max(1, min(end - start, most))) for start, end in pairwise(starts)]
