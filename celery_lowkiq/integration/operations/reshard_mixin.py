"""The part of ``task.ordered_queue`` that moves a queue to another number of shards."""

from __future__ import annotations

from celery import Celery

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.errors import NotMigrating
from celery_lowkiq.rules.layout import Layout
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.resharding import MigrationState, ReshardCost, cost
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.resharding.migrations import Migrations
from celery_lowkiq.store.resharding.reshard import check_shards, memory_of, reshard
from celery_lowkiq.store.scripts.progress import Progress


class ReshardMixin:
    """Migrations of a queue. Methods raise StoreError."""

    _app: Celery
    spec: QueueSpec

    def reshard(self, shards: int, progress: Progress | None = None) -> int:
        """Move the queue to another number of shards while it is in use, and return when that has ended.

        Callers and workers follow without a restart. Repeat it after an error. Raises InvalidCall;
        QueueMigrating while the queue moves to yet another number; MigrationPaused; and MigrationAborted.
        """
        check_shards(shards)
        return reshard(self._store.mover(self.spec), self.spec, shards, progress, 1 + self.movers())

    def movers(self) -> int:
        """Return the number of living nodes that serve the queue, and so move it."""
        return sum(node.alive and self.spec.name in node.queues for node in self._store.nodes())

    def reshard_cost(self, shards: int) -> ReshardCost:
        """Estimate what :meth:`reshard` would cost, without a change. Raises InvalidCall, QueueMigrating."""
        check_shards(shards)
        queue = context_of(self._app).registry.at_rest(self.spec)
        counts = context_of(self._app).queries.stats(queue)
        used = memory_of(self._store.client, queue)
        layout = Layout(shards, former=queue.shards)
        return cost(self.spec.name, layout, counts.length + counts.morgue_length, used)

    def pause_migration(self) -> bool:
        """Stop moving jobs, in all nodes; return whether it was not paused before.

        Jobs run where they are. An id is moved when a call comes for it. Raises NotMigrating without a
        migration, or when all jobs have moved.
        """
        return self._pause_migration(True)

    def resume_migration(self) -> bool:
        """Move jobs again after :meth:`pause_migration`; return whether it was. Raises NotMigrating."""
        return self._pause_migration(False)

    def abort_migration(self) -> int:
        """Begin to move all back to the former number of shards; return that number.

        Nodes do it; ``reshard`` to that number waits for it. A migration that takes another one back goes on,
        and this returns its own number. Raises NotMigrating without a migration, or when all jobs have moved;
        NotAbortable when a failover of Redis has lost whether the migration takes another one back.
        """
        former = self._migrations.abort()
        if former is None:
            raise NotMigrating(self.spec.name)
        return former

    def _pause_migration(self, wanted: bool) -> bool:
        changed = self._migrations.pause(wanted)
        if changed is None:
            raise NotMigrating(self.spec.name)
        return changed

    def migration(self) -> MigrationState | None:
        """Return the migration that is going on, with the counts of its shards; None without one."""
        return self._migrations.state()

    def migration_if_there(self) -> MigrationState | None:
        """Return :meth:`migration`; on a cluster, None while a master that it needs is away."""
        return self._store.client.unless_away(self.migration)

    @property
    def _store(self) -> RedisStore:
        return context_of(self._app).store

    @property
    def _migrations(self) -> Migrations:
        return Migrations(self._store.client, self.spec.name)
