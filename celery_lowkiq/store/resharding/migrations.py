"""The state of a queue's migration in its own key: begins one, and begins its phases."""

from __future__ import annotations

from typing import NamedTuple

from celery_lowkiq.rules.layout import Layout
from celery_lowkiq.rules.resharding import Migration, Phase
from celery_lowkiq.store.jobs.registry import check_format
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import FORMAT, MIGRATING_FORMAT, queue_key
from celery_lowkiq.store.scripts.script import load
from celery_lowkiq.store.scripts.steps import Steps


class StoredMigration(NamedTuple):
    """A migration, and the queue's last pause, which shards follow that are added."""

    migration: Migration
    pause: str
    since: str


class Migrations:
    """Migrations of one queue. Methods raise FormatMismatch, StoreError."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._keys = {"queue": queue_key(queue)}

    def begin(self, shards: int) -> bool:
        """Begin the migration to another number of shards. False when one is going on, or has just begun."""
        return self._client.execute(self.begin_steps(shards))

    def begin_steps(self, shards: int) -> Steps[bool]:
        """Steps of :meth:`begin`."""
        fields = ("HMGET", self._keys["queue"], "gen", "shards")
        ((gen, former),) = yield from self._client.command_steps([fields])
        call = load("begin_migration").call(
            self._keys, gen=gen or 0, shards=former or "", wanted=shards, format=MIGRATING_FORMAT
        )
        (begun,) = yield from self._client.call_steps([call])
        return bool(begun == 1)

    def read_steps(self) -> Steps[StoredMigration | None]:
        """Read the migration that is going on; None without one."""
        fields = ("HMGET", self._keys["queue"], "gen", "phase", "migration", "pause", "paused", "format")
        (stored,) = yield from self._client.command_steps([fields])
        gen, phase, route, pause, since, stored_format = ((value or b"").decode() for value in stored)
        check_format(self._queue, stored_format or str(FORMAT))
        layout = Layout.parse(route)
        if layout is None or phase in ("", Phase.IDLE.value):
            return None
        return StoredMigration(Migration(int(gen), Phase(phase), layout), pause or "0", since)

    def read(self) -> Migration | None:
        """Return the migration that is going on; None without one."""
        stored = self._client.execute(self.read_steps())
        return stored and stored.migration

    def begin_phase_steps(self, migration: Migration, phase: Phase) -> Steps[bool]:
        """Begin the next phase of a migration. False when another mover was first."""
        layout = migration.layout
        route = layout.route if phase in (Phase.FLIP, Phase.MOVE) else str(layout.shards)
        call = load("set_phase").call(
            self._keys,
            gen=migration.gen,
            phase=migration.phase.value,
            next=phase.value,
            shards=route,
            format=FORMAT if phase is Phase.IDLE else MIGRATING_FORMAT,
        )
        (begun,) = yield from self._client.call_steps([call])
        return bool(begun == 1)
